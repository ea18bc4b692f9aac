#pragma once
#include <algorithm>
#include <array>

#include "kernels/ceil_div.h"

// How the matrix of a head lies in the blocks of a cluster: see rnn_in_cluster.cuh. Follows from
// numbers alone, so that it can be tested without a GPU.
namespace recurve::cuda::sm90 {

constexpr int kRnnWarps = 8;  // of a block: each has its range of h
constexpr int kRnnThreads = 32 * kRnnWarps;
constexpr int kRnnSlab = 32;      // values of h
constexpr int kRnnMostSlabs = 3;  // of a range
constexpr int kRnnUnit = 8;       // channels, all gates of each: two tiles of 16 outputs
constexpr int kRnnSeqs = 4;       // that a cluster has at once, at most
constexpr int kRnnMostUnits = kRnnThreads / (kRnnSeqs * kRnnUnit);  // a thread ends a channel
constexpr int kRnnMostBlocks = 16;                                  // of a cluster
constexpr std::array<int, 4> kRnnClusters = {2, 4, 8, kRnnMostBlocks};

// Slabs of a range of h, for heads of DH channels.
constexpr int rnn_slabs(int DH) { return ceil_div(ceil_div(DH, kRnnSlab), kRnnWarps); }

// Units of a block whose weights are in registers. More, up to as many again, are in shared memory.
constexpr int rnn_register_units(int slabs) { return slabs == 1 ? 8 : slabs == 2 ? 4 : 3; }
constexpr int rnn_memory_units(int slabs, int units) {
  return units > rnn_register_units(slabs) ? rnn_register_units(slabs) : 0;
}

// Bytes of shared memory of a block: weights, two buffers of h in two parts, partial sums.
constexpr int rnn_weight_bytes(int slabs, int units) {
  return rnn_memory_units(slabs, units) * 2 * slabs * 2 * 16 * kRnnThreads;
}
// Pieces of 8 values of h in bf16: a part of a sequence each.
constexpr int rnn_pieces(int slabs) { return kRnnWarps * slabs * kRnnSlab / 8 * 2 * kRnnSeqs; }
constexpr int rnn_sums_pitch(int slabs) {  // floats
  return std::min(2 * rnn_register_units(slabs), kRnnMostUnits) * 4 * kRnnUnit + 8;
}
constexpr int rnn_bytes(int slabs, int units) {
  return rnn_weight_bytes(slabs, units) + 2 * 16 * rnn_pieces(slabs) +
         kRnnWarps * kRnnSeqs * rnn_sums_pitch(slabs) * 4;
}

struct RnnProblem {
  int H, DH, num_seqs;
  int most_bytes;                                // of shared memory of a block
  std::array<int, kRnnClusters.size()> at_once;  // clusters of each size that the GPU runs
};

struct RnnPlan {
  int cluster = 0;   // blocks; 0: no cluster holds the matrix
  int units = 0;     // of a block
  int seqs = 0;      // that a cluster has at once
  int clusters = 0;  // of a head: each has every clusters-th group of sequences in turn
};

// Cycles of a row on an H200: products of a tile 9 in each quarter of a multiprocessor, and what
// the exchange of h takes.
constexpr int rnn_row_cycles(int slabs, int units) {
  const bool memory = rnn_memory_units(slabs, units) > 0;
  const int tiles = 2 * (memory ? 2 * rnn_register_units(slabs) : units);
  return tiles * 2 * slabs * (kRnnWarps / 4) * 9 + 1600;
}

// What takes the least time for a prompt in each of the sequences.
constexpr RnnPlan plan_rnn(const RnnProblem& p) {
  RnnPlan best;
  long best_cycles = 0;
  const int slabs = rnn_slabs(p.DH);
  if (p.DH % kRnnUnit != 0 || slabs > kRnnMostSlabs) return best;
  for (size_t i = 0; i < kRnnClusters.size(); ++i) {
    const int cluster = kRnnClusters[i], units = ceil_div(p.DH / kRnnUnit, cluster);
    if (p.at_once[i] == 0 || cluster * kRnnUnit > p.DH) continue;
    if (units > std::min(2 * rnn_register_units(slabs), kRnnMostUnits)) continue;
    if (rnn_bytes(slabs, units) > p.most_bytes) continue;
    const int most = std::max(1, p.at_once[i] / p.H);  // clusters of a head at once
    const int turns = ceil_div(p.num_seqs, most * kRnnSeqs);
    const int seqs = ceil_div(p.num_seqs, most * turns);
    const int clusters = std::min(most, ceil_div(p.num_seqs, seqs));
    const long cycles =
        long{turns} * ceil_div(clusters * p.H, p.at_once[i]) * rnn_row_cycles(slabs, units);
    if (best.cluster != 0 && cycles >= best_cycles) continue;
    best = {cluster, units, seqs, clusters};
    best_cycles = cycles;
  }
  return best;
}

}  // namespace recurve::cuda::sm90
