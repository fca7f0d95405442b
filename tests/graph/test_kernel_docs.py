from tests.graph.kernel_docs import PATH, page


def test_the_page_says_what_the_passes_do():
    assert PATH.read_text(encoding="utf-8") == page()
