"""The same in plain Python: penstock.sync has the names of the async client, without await."""

import os
import sys
import threading

from penstock import ConsumeFrom, Message, ReceivedMessage, sync

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
PATIENCE_S = 20


def main() -> int:
    with sync.Producer(NAME_SERVER, group="quickstart-shop") as producer:
        greetings = [Message("quickstart-plain", f"hello {number}".encode()) for number in range(5)]
        waiting = {sent.message_id for sent in producer.send_many(greetings)}
    print(f"{len(waiting)} greetings sent")

    consumer = sync.PushConsumer(NAME_SERVER, group="quickstart-plain", consume_from=ConsumeFrom.FIRST_OFFSET)
    lock = threading.Lock()
    done = threading.Event()

    @consumer.on("quickstart-plain")
    def greet(message: ReceivedMessage) -> None:  # plain functions run on worker threads, several at once
        with lock:
            print(f"got {message.body.decode()}")
            waiting.discard(message.message_id)
            if not waiting:
                done.set()

    with consumer:
        if not done.wait(PATIENCE_S):
            print(f"{len(waiting)} greetings did not come in {PATIENCE_S} s")
            return 1
    print("all of them came")
    return 0


if __name__ == "__main__":
    sys.exit(main())
