#pragma once
#include "kernels/ceil_div.h"

// How prompts of a recurrence h <- a h + x of independent channels are split into blocks of
// threads: see channel_scan_rows.cuh. It depends on numbers only, so tests call it without a GPU.
namespace recurve::cuda::sm80 {

constexpr int kScanStages = 4;   // tiles of inputs
constexpr int kScanBuffers = 2;  // tiles of coefficients

// Warps of a block that compute coefficients. A wide block has a multiprocessor to itself.
constexpr int kWideScanWarps = 19, kNarrowScanWarps = 8;

// Channels of a block. Each is a multiple of the 32 bytes that memory is read and written in.
constexpr int kScanChannels[] = {8, 16, 32};
constexpr int kMostScanChannels = 32;  // a warp computes the states, one channel a lane

struct ChannelScanPlan {
  bool wide;
  int channels;  // of a block
  int pieces;    // blocks of a sequence
};

struct ChannelScanProblem {
  int inputs, coefficients;  // arrays of each
  int sequences, D;
  int multiprocessors;
  int most_bytes;  // limit of shared memory of a block
};

// Bytes of shared memory of a block: a thread has four channels of a row in each array.
constexpr int channel_scan_bytes(int inputs, int coefficients, int warps) {
  return (kScanStages * inputs + kScanBuffers * coefficients) * warps * 32 * 16;
}

// If every block can have a multiprocessor, blocks are wide, with as few channels as that allows.
constexpr ChannelScanPlan plan_channel_scan(const ChannelScanProblem& p) {
  if (channel_scan_bytes(p.inputs, p.coefficients, kWideScanWarps) <= p.most_bytes) {
    for (const int channels : kScanChannels) {
      const int pieces = ceil_div(p.D, channels);
      if (pieces <= p.multiprocessors / p.sequences) return {true, channels, pieces};
    }
  }
  return {false, kMostScanChannels, ceil_div(p.D, kMostScanChannels)};
}

}  // namespace recurve::cuda::sm80
