"""Reads what xce-train leaves in a run directory."""
import json


def records(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def training_seconds(run):
    """Time in training steps alone: no start, validation or saving."""
    return sum(record["time_ms"] for record in records(run)) / 1000


def tokens_per_s(run):
    return records(run)[-1]["tokens"] / training_seconds(run)


def parameters(run):
    """How many weights the exported model has."""
    with open(run / "export" / "model.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    total = 0
    for name, tensor in header.items():
        if name != "__metadata__":
            count = 1
            for size in tensor["shape"]:
                count *= size
            total += count
    return total
