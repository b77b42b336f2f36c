"""`python -m rebinding COMMAND ...`"""

import sys

from rebinding.cli.commands import main

if __name__ == "__main__":
    sys.exit(main())
