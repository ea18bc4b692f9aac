"""One beginning, several ways on: each fork starts from the same state, and nothing is read twice.

python branching_story.py [HOST:PORT]
"""

import sys

import recurve

OPENINGS = ("The door opened, and", "Nobody came, so", "Far away, a bell")


def main(address: str = "127.0.0.1:50051") -> None:
    with recurve.Client(address) as client, client.session() as story:
        beginning = "It was a dark night. The old man sat by the fire and listened."
        story.generate(beginning, max_tokens=0)
        print(beginning)
        story.mark("night")
        for opening in OPENINGS:
            with story.fork() as branch:
                print(f"\n-- {opening}", end="")
                for chunk in branch.generate(f" {opening}", max_tokens=40, stream=True):
                    print(chunk.text, end="", flush=True)
                print(f"\n   ({branch.get().position} tokens behind it)")
        story.generate(" In the morning", max_tokens=20)
        print(f"\nback to the night: {story.rewind('night').position} tokens")


if __name__ == "__main__":
    main(*sys.argv[1:])
