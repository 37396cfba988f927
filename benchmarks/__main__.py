"""``python -m benchmarks compare`` and ``python -m benchmarks scale``."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the benchmark that the first argument names."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if word == "compare":
        from benchmarks import compare

        return compare.main(sys.argv[2:])
    if word == "scale":
        from benchmarks import scale

        return scale.main(sys.argv[2:])
    print("usage: python -m benchmarks compare | scale [--help]", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
