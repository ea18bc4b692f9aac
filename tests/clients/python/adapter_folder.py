"""Writes LoRA adapters of weights_tools/demo/xlstm-books as PEFT does, without PEFT."""

import json
import random
import struct

WIDTH = 256


def write(folder, seed, rank=4):
    """A folder with adapter_config.json and adapter_model.safetensors, and values of the seed."""
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": ["out_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    drawn = random.Random(seed)
    header, data = {}, b""
    for layer in range(2):
        for matrix, shape in (("A", (rank, WIDTH)), ("B", (WIDTH, rank))):
            count = shape[0] * shape[1]
            values = struct.pack(f"<{count}f", *(drawn.gauss(0, 0.3) for _ in range(count)))
            name = f"base_model.model.backbone.blocks.{layer}.mlstm_layer.out_proj.lora_{matrix}.weight"
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
            data += values
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
