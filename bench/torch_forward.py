#!/usr/bin/env python3
"""A plain forward pass of GPT-2 small's shape in PyTorch, logits at the last position, for
comparison with `unpack bench`. Needs torch and transformers.

    bench/torch_forward.py [TOKENS] [THREADS]
"""
import statistics
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 16
torch.set_num_threads(int(sys.argv[2]) if len(sys.argv) > 2 else 2)
torch.manual_seed(1)
model = GPT2LMHeadModel(GPT2Config()).eval()
ids = torch.arange(tokens)[None] * 7919 % 50000
times = []
with torch.no_grad():
    for _ in range(25):
        begin = time.perf_counter()
        hidden = model.transformer(ids, use_cache=False).last_hidden_state[:, -1]
        model.lm_head(hidden)
        times.append(time.perf_counter() - begin)
print(
    f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads, {tokens} tokens: median"
    f" {statistics.median(times[5:]):.4f} s"
)
