"""What a training step has to do at least, by kernel family, from a resolved config: the ceilings of profile_report.py.

N tokens of a step and rank, L layers, H hidden_size, F intermediate_size, Q and K the widths of all query and all key
heads, V vocabulary, T seq_len, P parameters; s and a bytes of an activation and of a main gradient (bf16: 2 and 4).

  GEMM, layers    6 N L (H (Q + 2K) + Q H + 3 H F) FLOPs, and 2 N ... again with recompute: block
  GEMM, head      6 N V H FLOPs: the logits once, and two gradients
  attention       7 N L T Q FLOPs: causal, 2 products forward and 5 backward; 2 more with recompute
  loss            N V (a + s) bytes: the logits read, their gradients written; its products are GEMM, head
  rmsnorm         forward 2 N H s bytes, backward 4 N H s (it adds to a gradient), the last norm's 3; 2 L + 1 norms
  swiglu          forward 3 N F s bytes, backward 6 N F s (the activation once more), L times
  rope            2 N (Q + K) s bytes forward and as much backward, L times
  embedding       3 N H s + 2 N H a bytes: rows copied, gradients read and added
  optimizer       P (7 a + s) bytes of AdamW and P a of the norm; without the s at fp32 and fp64, which keep one copy

Counted is what memory and tensor cores cannot avoid with these kernels; weights of the norms and tables stay in caches.
"""

DTYPE_BYTES = {"fp32": (4, 4), "bf16": (2, 4), "fp64": (8, 8)}


def read_config(text):
    """The keys of `xce-train --print-config` or a run's config.resolved.yaml as {"section.key": text}."""
    values, sections = {}, []
    for line in text.split("\n"):
        content = line.split(" #")[0].rstrip()
        name, colon, value = content.strip().partition(":")
        if not colon or content.lstrip().startswith("#"):
            continue
        depth = (len(content) - len(content.lstrip())) // 2
        sections = sections[:depth]
        if value.strip():
            values[".".join(sections + [name])] = value.strip().strip("\"'")
        else:
            sections.append(name)
    return values


class Model:
    def __init__(self, config, ranks=1):
        def integer(key):
            if key not in config:
                raise ValueError(f"no {key} in the config")
            return int(float(config[key]))

        self.layers, self.hidden = integer("model.num_hidden_layers"), integer("model.hidden_size")
        self.ffn, self.vocab = integer("model.intermediate_size"), integer("model.vocab_size")
        heads = integer("model.num_attention_heads")
        self.head_dim = integer("model.head_dim") or self.hidden // heads
        self.query = heads * self.head_dim
        self.key = (integer("model.num_key_value_heads") or heads) * self.head_dim
        self.tied = config.get("model.tie_word_embeddings") == "true"
        self.seq_len = integer("train.seq_len")
        sequences = integer("train.global_batch") or integer("train.micro_batch")
        self.tokens = sequences * self.seq_len / ranks
        precision = config.get("train.precision", "fp32")
        if precision not in DTYPE_BYTES:
            raise ValueError(f"train.precision is one of {', '.join(DTYPE_BYTES)}, not {precision}")
        self.bytes, self.accum_bytes = DTYPE_BYTES[precision]
        self.recompute = config.get("train.recompute") == "block"
        if self.vocab == 0:
            raise ValueError("model.vocab_size is 0: take the run's config.resolved.yaml, which has the data's")

    def block_weights(self):
        return self.hidden * (self.query + 2 * self.key) + self.query * self.hidden + 3 * self.hidden * self.ffn

    def parameters(self):
        tables = self.vocab * self.hidden * (1 if self.tied else 2)
        return tables + self.layers * (self.block_weights() + 2 * self.hidden) + self.hidden

    def flops(self):
        """Matrix-product FLOPs of a step by family."""
        n, again = self.tokens, 2 if self.recompute else 0
        return {"GEMM, layers": (6 + again) * n * self.layers * self.block_weights(),
                "GEMM, head": 6 * n * self.vocab * self.hidden,
                "attention": (7 + again) * n * self.layers * self.seq_len * self.query}

    def bytes_moved(self):
        """Bytes that a step's kernels read and write by family."""
        n, s, a, layers = self.tokens, self.bytes, self.accum_bytes, self.layers
        runs = 2 if self.recompute else 1  # of each layer's forward
        rows = n * self.hidden * s
        compute_copy = s if s != a else 0
        return {"loss": n * self.vocab * (a + s),
                "rmsnorm": 2 * layers * rows * (2 * runs + 4) + rows * (2 + 3),
                "swiglu": layers * n * self.ffn * s * (3 * runs + 6),
                "rope": layers * n * (self.query + self.key) * s * 2 * (runs + 1),
                "embedding": 3 * rows + 2 * n * self.hidden * a,
                "optimizer": self.parameters() * (7 * a + compute_copy + a)}

    def mfu_flops(self):
        """By the usual count: 6 per weight and token, causal attention's backward as twice its forward."""
        weights = self.layers * self.block_weights() + self.vocab * self.hidden
        return self.tokens * (6 * weights + 6 * self.layers * self.query * self.seq_len)


def ceilings(model, rates):
    """{family: (work, unit, rate, best_ms)}: what a step does in TFLOP or TB, and its time at the rate in TFLOP/s or
    TB/s. rates: gemm_tflops, attention_tflops (0: cuDNN's for this head_dim), copy_tbs."""
    # cuDNN 9 on an H200, forward and backward together: 415 and 376 at a head_dim of 64, 539 and 453 at 128.
    attention = rates["attention_tflops"] or (474 if model.head_dim >= 128 else 386)
    result = {}
    for family, flops in model.flops().items():
        rate = attention if family == "attention" else rates["gemm_tflops"]
        result[family] = (flops / 1e12, "TFLOP/s", rate, flops / rate / 1e9)
    for family, count in model.bytes_moved().items():
        result[family] = (count / 1e12, "TB/s", rates["copy_tbs"], count / rates["copy_tbs"] / 1e9)
    return result
