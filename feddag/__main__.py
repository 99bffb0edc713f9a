"""`python -m feddag` is `feddag`."""

from feddag.cli import main

if __name__ == "__main__":
    main()
