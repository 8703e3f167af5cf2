"""Profile one rank of a model on one GPU with torch alone: operator tables, or the terms of the KV budget.

    python scripts/profile.py operators --model config.json --device h100-sxm --tp 2 --out profile
    python scripts/profile.py memory --model config.json --tp 2 --tokens 8192 --rows 256

Where only torch is installed, copy this file with the folder `profiling` beside it into a folder called `scripts`. What
it writes, `headway calibrate` reads (docs/profile.md).
"""

import sys
from pathlib import Path


HERE = Path(__file__).resolve().parent

if __name__ == "__main__":
    # this folder's modules bear names of the standard library (profile, table): they must not be found in its place
    sys.path[:] = [str(HERE.parent), *(path for path in sys.path if Path(path or ".").resolve() != HERE)]
    from scripts.profiling.run import main

    sys.exit(main())
