"""``python -m simcore``: the same commands as the console script."""

from simcore.apps.process import main

if __name__ == "__main__":
    main()
