"""``python -m collbench``: the form torchrun wants."""

from collbench.cli import main

if __name__ == "__main__":
    main()
