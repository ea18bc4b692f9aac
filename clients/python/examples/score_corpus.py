"""Bits per byte of text files, several at a time, each read as it is scored.

python score_corpus.py HOST:PORT FILE...
"""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import recurve

AT_ONCE = 4


def pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(65536):
            yield piece


async def main(address: str, *files: str) -> None:
    turns = asyncio.Semaphore(AT_ONCE)
    async with recurve.AsyncClient(address) as client:

        async def score(path: Path) -> recurve.Score:
            async with turns:
                return await client.score(pieces(path))

        for name, score_ in zip(files, await asyncio.gather(*(score(Path(f)) for f in files))):
            print(
                f"{name}: {score_.bits_per_byte:.3f} bits per byte, {score_.scored_tokens} tokens"
            )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
