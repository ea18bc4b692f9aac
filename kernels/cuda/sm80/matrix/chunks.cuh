#pragma once
#include "kernels/ops/ragged.h"

// How the rows of a sequence are cut into chunks, and these into blocks of rows that a chunk form
// takes at a time.
namespace recurve::cuda::sm80 {

// The rows of a sequence that take the step form, [first, end): the last chunk where that is one
// row, or all rows where chunks are.
struct StepRows {
  int first, end;
};
__device__ inline StepRows step_rows(const Ragged& seqs, int chunk, int sequence) {
  // A read less before all others.
  if (seqs.rows == seqs.num_seqs && seqs.max_len == 1) return {sequence, sequence + 1};
  const int begin = seqs.begin[sequence], end = seqs.begin[sequence + 1];
  if (chunk == 1) return {begin, end};
  return {(end - begin - 1) % chunk == 0 ? end - 1 : end, end};
}

constexpr int kBlockRows = 16;

template <int kRows = kBlockRows>
__host__ __device__ int blocks_of_chunk(int chunk) {
  return (chunk + kRows - 1) / kRows;
}

template <int kRows = kBlockRows>
int blocks_of_sequence(int length, int chunk) {
  return length / chunk * blocks_of_chunk<kRows>(chunk) + blocks_of_chunk<kRows>(length % chunk);
}

// Block `number` of a sequence, counted through its chunks of two rows or more: [first, first + L),
// L at most kRows. L is 0 behind the last one.
struct RowBlock {
  int first, L;
};
template <int kRows = kBlockRows>
__device__ RowBlock row_block(const Ragged& seqs, int chunk, int sequence, int number) {
  const int begin = seqs.begin[sequence], length = seqs.begin[sequence + 1] - begin;
  const int chunk_first = number / blocks_of_chunk<kRows>(chunk) * chunk;
  const int chunk_end = min(chunk_first + chunk, length);
  const int first = chunk_first + number % blocks_of_chunk<kRows>(chunk) * kRows;
  if (chunk_end - chunk_first < 2 || first >= chunk_end) return {begin, 0};
  return {begin + first, min(kRows, chunk_end - first)};
}

}  // namespace recurve::cuda::sm80
