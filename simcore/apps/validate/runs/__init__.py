"""Published training runs, predicted row by row and scored."""
