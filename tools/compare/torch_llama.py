#!/usr/bin/env python3
"""PyTorch training the model of an xce run on the CPU: same shape, text, batch and optimizer, compiled, on two threads.

  torch_llama.py RUN TEXT SECONDS [--eager]   RUN holds config.resolved.yaml; --eager does not compile

The learning rate warms up for as many steps as the run's and falls linearly to zero over SECONDS of training, with
compilation outside the clock. Prints a JSON line: parameters, steps, tokens_per_s, bits_per_byte of the held-out part.
"""
import argparse
import json
import math
import pathlib
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
import yaml


class Shape:
    """What the model and the training need of config.resolved.yaml."""

    def __init__(self, config):
        model, train = config["model"], config["train"]
        self.vocab, self.hidden = model["vocab_size"], model["hidden_size"]
        self.ffn, self.layers = model["intermediate_size"], model["num_hidden_layers"]
        self.heads, self.kv_heads = model["num_attention_heads"], model["num_key_value_heads"]
        self.head_dim = model["head_dim"]
        self.theta, self.eps = float(model["rope_theta"]), float(model["rms_norm_eps"])
        self.tied = model["tie_word_embeddings"]
        self.seq, self.batch = train["seq_len"], train["global_batch"]


class Block(nn.Module):
    def __init__(self, shape, cos, sin):
        super().__init__()
        self.shape, self.cos, self.sin = shape, cos, sin
        heads = shape.heads + 2 * shape.kv_heads
        self.norm1, self.norm2 = (nn.RMSNorm(shape.hidden, eps=shape.eps) for _ in range(2))
        self.qkv = nn.Linear(shape.hidden, heads * shape.head_dim, bias=False)
        self.out = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)
        self.gate_up = nn.Linear(shape.hidden, 2 * shape.ffn, bias=False)
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def rope(self, x):
        p, q = x.chunk(2, -1)
        return torch.cat((p * self.cos - q * self.sin, q * self.cos + p * self.sin), -1)

    def forward(self, x):
        s = self.shape
        heads = self.qkv(self.norm1(x)).view(-1, s.seq, s.heads + 2 * s.kv_heads, s.head_dim).transpose(1, 2)
        q, k, v = heads.split((s.heads, s.kv_heads, s.kv_heads), 1)
        y = F.scaled_dot_product_attention(self.rope(q), self.rope(k), v, is_causal=True,
                                           enable_gqa=s.heads != s.kv_heads)
        x = x + self.out(y.transpose(1, 2).reshape(-1, s.seq, s.heads * s.head_dim))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def build(shape):
    frequency = shape.theta ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
    angle = torch.outer(torch.arange(shape.seq).float(), frequency)
    embedding, head = nn.Embedding(shape.vocab, shape.hidden), nn.Linear(shape.hidden, shape.vocab, bias=False)
    blocks = [Block(shape, angle.cos(), angle.sin()) for _ in range(shape.layers)]
    model = nn.Sequential(embedding, *blocks, nn.RMSNorm(shape.hidden, eps=shape.eps), head)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            is_table = parameter is embedding.weight or parameter is head.weight
            nn.init.normal_(parameter, std=0.02 if is_table else 0.6 / math.sqrt(parameter.shape[1]))
    if shape.tied:
        head.weight = embedding.weight
    return model


def train(model, loss_of, tokens, shape, config, seconds):
    """Steps until the clock has run for `seconds`; returns their number and the seconds they took."""
    optim = {key: float(value) for key, value in config["optim"].items()}  # PyYAML reads 1e-8 as a word
    warmup = config["schedule"]["warmup_steps"]
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": optim["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=optim["lr"], betas=(optim["beta1"], optim["beta2"]), eps=optim["eps"],
                                  fused=True)
    loss_of(torch.zeros(shape.batch, shape.seq, dtype=torch.long),
            torch.zeros(shape.batch, shape.seq, dtype=torch.long)).backward()
    generator, steps, start = torch.Generator().manual_seed(1), 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        for group in optimizer.param_groups:
            group["lr"] = optim["lr"] * min(1, (steps + 1) / max(warmup, 1)) * (1 - spent / seconds)
        at = torch.randint(0, len(tokens) - shape.seq - 1, (shape.batch,), generator=generator).tolist()
        x = torch.stack([tokens[i:i + shape.seq] for i in at])
        y = torch.stack([tokens[i + 1:i + 1 + shape.seq] for i in at])
        optimizer.zero_grad()
        loss_of(x, y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), optim["grad_clip"])
        optimizer.step()
        steps += 1
    return steps, time.perf_counter() - start


@torch.no_grad()
def bits_per_token(model, tokens, shape):
    """Mean over all tokens but the first, in consecutive windows; the last one is padded, its padding not counted."""
    total, count = 0.0, len(tokens) - 1
    windows = -(-count // shape.seq)
    x = torch.zeros(windows * shape.seq, dtype=torch.long)
    y = torch.full((windows * shape.seq,), -100)
    x[:count], y[:count] = tokens[:-1], tokens[1:]
    for xs, ys in zip(x.view(windows, -1).split(shape.batch), y.view(windows, -1).split(shape.batch)):
        total += F.cross_entropy(model(xs).flatten(0, 1), ys.flatten(), ignore_index=-100, reduction="sum").item()
    return total / count / math.log(2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--eager", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    config = yaml.safe_load((args.run / "config.resolved.yaml").read_text())
    shape = Shape(config)
    tokens = torch.frombuffer(bytearray(args.text.read_bytes()), dtype=torch.uint8).long()
    cut = len(tokens) - round(len(tokens) * float(config["data"]["val_fraction"]))
    model = build(shape)

    def loss_of(x, y):
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    compiled = loss_of if args.eager else torch.compile(loss_of)
    steps, seconds = train(model, compiled, tokens[:cut], shape, config, args.seconds)
    print(json.dumps({
        "torch": torch.__version__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": steps,
        "tokens_per_s": steps * shape.batch * shape.seq / seconds,
        "bits_per_byte": bits_per_token(model, tokens[cut:], shape),
    }))


if __name__ == "__main__":
    main()
