"""`python -m loraplex.entrypoints.openai.api_server --model M` is `loraplex serve --model M`."""

import sys

from loraplex.__main__ import main

if __name__ == "__main__":
    sys.argv[1:1] = ["serve"]
    main()
