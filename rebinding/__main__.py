"""`python -m rebinding VERB ...`"""

import sys

from rebinding.verbs.verbs import main

if __name__ == "__main__":
    sys.exit(main())
