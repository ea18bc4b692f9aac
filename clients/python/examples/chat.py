"""A conversation at the terminal. The session remembers: only what is new is sent.

python chat.py [HOST:PORT]
"""

import sys

import recurve


def main(address: str = "127.0.0.1:50051") -> None:
    with recurve.Client(address) as client, client.session() as session:
        has_template = client.model_info().has_chat_template
        while line := input_line():
            if has_template:
                answer = session.chat(line, max_tokens=60, stream=True)
            else:  # the model goes on with the text, to the end of its line
                answer = session.generate(line + "\n", max_tokens=60, stop="\n", stream=True)
            for chunk in answer:
                print(chunk.text, end="", flush=True)
            print()


def input_line() -> str:
    print("> ", end="", flush=True)
    return sys.stdin.readline().strip()


if __name__ == "__main__":
    main(*sys.argv[1:])
