// What the operations of a layer are given and give back.
//
// Shapes: T rows of one or several prompts, S positions of one prompt, Cl the writers a sublayer
// can see (a prefix of all C), and tri = S (S + 1) / 2 pairs s <= q stored at q (q + 1) / 2 + s.
#pragma once

#include <vector>

#include "backend/array.h"
#include "base/index.h"
#include "unpack/config.h"
#include "unpack/options.h"

namespace unpack::backend {

inline Index tri(Index q) { return q * (q + 1) / 2; }

enum class Sublayer { attention, mlp };
enum class MlpSide { gate, up, router };  // gate is the only one of a plain MLP

// Which experts of a mixture the rows of a batch use, and what the router said of all of them.
struct Routing {
  int chosen = 0;              // k
  int experts = 0;             // E
  std::vector<int> expert;     // [T, k], the strongest first
  std::vector<double> weight;  // [T, k] what their outputs are multiplied by
  std::vector<double> logits;  // [T, E]

  std::size_t slot(Index row, int i) const { return row * chosen + i; }
  Routing of_row(Index row) const {
    const auto cut = [row](const auto& all, int width) {
      return std::remove_cvref_t<decltype(all)>(all.begin() + row * width,
                                                all.begin() + (row + 1) * width);
    };
    return {chosen, experts, cut(expert, chosen), cut(weight, chosen), cut(logits, experts)};
  }
};

// Rows [begin, begin + length) of a batch are one prompt; `past` positions of it were seen before
// (generation).
struct Segment {
  Index begin = 0;
  int length = 0;
  int past = 0;
};

// What the writers of a prompt are made of, where they are not kept: those of some positions are
// made for whoever reads them.
struct WriterParts {
  struct Layer {
    const Array* z = nullptr;         // [S, H, E]
    const Array* attn_out = nullptr;  // [S, D] the heads' sum
    const Array* out_dev = nullptr;   // [S] of the norm behind the heads, else empty
    const Array* mlp_out = nullptr;   // [S, D]
  };
  const Array* emb = nullptr;  // [S, D]
  const Array* pos = nullptr;  // empty where positions are not embedded
  std::vector<Layer> layers;
};

// What the attention of one layer realised, for one prompt.
struct AttentionView {
  int layer = 0;
  int length = 0;                   // S
  int visible = 0;                  // Cl
  const Array* writers = nullptr;   // [S, C, D] centred; empty where there are parts
  int n_writers = 0;                // C
  const Array* dev = nullptr;       // [S] deviation of the stream at the norm
  const Array* q = nullptr;         // [S, H, E]
  const Array* k = nullptr;         // [S, G, E]
  const Array* v = nullptr;         // [S, G, E]
  const Array* q_dev = nullptr;     // [S, H] deviation inside the norm of queries, else empty
  const Array* k_dev = nullptr;     // [S, G]
  const Array* pattern = nullptr;   // [H, tri]
  const Array* out_dev = nullptr;   // [S] deviation of the norm behind, else empty
  const Array* q_scores = nullptr;  // of the sums, where they are there already
  std::vector<const Array*> z;      // [S, H, E] of every layer
  const WriterParts* parts = nullptr;
};

struct MlpView {
  int layer = 0;
  int length = 0;
  int visible = 0;
  const Array* writers = nullptr;
  int n_writers = 0;
  const Array* dev = nullptr;  // [S]
  const Array* act = nullptr;  // [S, entries] the neurons' values a_n, times their expert's weight
  const Array* out_dev = nullptr;    // [S] deviation of the norm behind, else empty
  const Routing* routing = nullptr;  // of a mixture
  std::vector<const Array*> z;       // [S, H, E] of every layer
  const Array* last = nullptr;       // of the sums, where they are there already
  int last_at = -1;                  // whose scores these are; -1: the last position's
  const WriterParts* parts = nullptr;
};

// Sums over the visible writers of scores and of their sizes, one pair per denominator.
struct AttentionSums {
  Array k_sum, k_abs, q_sum, q_abs;  // [H, tri]
  Array v_sum, v_abs;                // [G, S]
  Array v_scores;                    // [G, S, Cl]
  // A backend may leave the next two out of sums of raw scores: key_moments has them.
  Array k_std;     // [H, S, Cl] over s <= q of the raw key scores: the interaction score
  Array k_mean;    // [H, S, Cl] their mean over s <= q
  Array k_scores;  // [H, tri, Cl], only when asked for
  Array q_scores;  // [H, tri, Cl], with k_scores and where a backend has it and it is small
};

struct MlpSums {
  Array sum, abs;  // [S, entries]; of the router [S, k]
  Array l2;        // [S, Cl] || sM_j(q, .) ||_2; a backend may leave it out: mlp_norms() has it
  Array last;  // [Cl, N] the scores at the last position, which most targets start from; where a
               // backend has it and it is small
};

}  // namespace unpack::backend
