"""``python -m collbench``: the form torchrun wants."""

from collbench.cli.main import main

if __name__ == "__main__":
    main()
