"""Writes paged_attention_golden.h: causal attention of PyTorch (scaled_dot_product_attention, in double) on rows that
paged_attention_test.cc draws in the same way.

    python tests/kernels/paged_attention_golden.py > tests/kernels/paged_attention_golden.h
"""

import torch

CASES = [  # H, HK, D, rows, those that are recorded
    (3, 1, 5, 300, [0, 255, 256, 299]),
    (4, 2, 20, 520, [1, 511, 519]),
    (2, 1, 64, 270, [269]),
]


class Draws:
    def __init__(self):
        self.state = 1

    def __call__(self, rows, heads, width, factor):
        values = []
        for _ in range(rows * heads * width):
            self.state = (self.state * 1664525 + 1013904223) % 2**32
            values.append(factor * ((self.state >> 16) / 32768 - 1))
        return torch.tensor(values, dtype=torch.float64).reshape(1, rows, heads, width).transpose(1, 2)


def outputs(H, HK, D, L, rows):
    draw = Draws()
    q, k, v = draw(L, H, D, 4), draw(L, HK, D, 2), draw(L, HK, D, 1)
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return o[0, :, rows].transpose(0, 1).flatten().tolist()


print(f"""#pragma once
// Written by paged_attention_golden.py with PyTorch {torch.__version__}.
#include <vector>

namespace recurve::testing {{

struct AttentionGolden {{
  int H, HK, D, L;
  std::vector<int> rows;
  std::vector<float> o;  // (rows, H, D)
}};

// clang-format off
inline const std::vector<AttentionGolden> kAttentionGoldens = {{""")
for H, HK, D, L, rows in CASES:
    values = [f"{value:.9g}" for value in outputs(H, HK, D, L, rows)]
    values = [value + "f" if "." in value or "e" in value else value + ".0f" for value in values]
    print(f"    {{{H}, {HK}, {D}, {L}, {{{', '.join(map(str, rows))}}},\n     {{")
    for at in range(0, len(values), 6):
        print("      " + ", ".join(values[at : at + 6]) + ",")
    print("     }},")
print("};\n// clang-format on\n\n}  // namespace recurve::testing")
