#pragma once
#include <type_traits>

#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/sm90/async.cuh"
#include "kernels/cuda/sm90/linear/linear_accumulator.cuh"
#include "kernels/cuda/sm90/linear/linear_finish.cuh"
#include "kernels/cuda/sm90/linear/linear_held.cuh"
#include "kernels/cuda/sm90/linear/linear_lora.cuh"
#include "kernels/cuda/sm90/linear/linear_rows.cuh"
#include "kernels/cuda/sm90/linear/linear_tile.cuh"

// y = x W^T with weights in bf16, or packed and unpacked to bf16, on Hopper's tensor cores, at the
// speed of memory for few rows.
//
// A tile is some rows of W and up to 256 rows of x. Boxes of both pass through a ring of stages in
// shared memory, filled by one warp. A product has 64 rows of one side and up to 256 columns, which
// are rows of the other. Up to 128 rows of x are the columns, so 8 of them cost no more than one
// does; beyond that the rows of W are, in wide tiles.
//
// A row's result has the same bits whatever the other rows and however high the tiles are: an
// element of a product is summed alone, in the order of K; into how many pieces K is cut follows
// from the shape of W alone, and the pieces are added by pairs, then the pairs and so on.
namespace recurve::cuda::sm90 {

// What brings the boxes. The weights do not wait for the kernel before this one. Two blocks that
// share them load a box each, for both.
template <typename T>
struct Loader {
  const Shared<T>& shared;
  const CUtensorMap &W, &x, &first_x;
  const LinearParams& params;
  const BlockCoord& block;

  // Boxes for all stages, of a paced block without the rows, by one thread. wait_for_rows: until
  // these may be read.
  template <typename Wait>
  __device__ void begin(const Wait& wait_for_rows) const {
    const int ahead = min(params.stages, stages_of_all());
    for (int i = 0; i < ahead; ++i) {
      if (kPaced<T> && i >= params.under_way) {
        wait_for_turn(&shared.barriers.full[i - params.under_way]);
      }
      load_weights(i, i, kPaced<T> ? 0 : params.x_bytes());
    }
    if constexpr (!kPaced<T>) {
      wait_for_rows();
      for (int i = 0; i < ahead; ++i) load_rows(i, i, &shared.barriers.full[i]);
    }
  }
  // Brings the rows that go with the first boxes of a paced block. Another thread does so, once
  // they may be read.
  __device__ void begin_rows() const {
    if (params.first_boxes > 0) {
      arrive_expecting(&shared.rows, params.first_boxes * params.x_box_bytes());
      load_boxes(shared.x(0), first_x, block.first_box, block.x_row, &shared.rows, Keep::kNormal);
      return;
    }
    const int ahead = min(params.stages, stages_of_all());
    arrive_expecting(&shared.rows, ahead * params.x_bytes());
    for (int i = 0; i < ahead; ++i) load_rows(i, i, &shared.rows);
  }
  // The other boxes, by the thread that began, once rows may be read.
  __device__ void go_on() const {
    RingStage stage;
    for (int i = params.stages; i < stages_of_all(); ++i, stage.next(params.stages)) {
      wait(&shared.barriers.empty[stage.index], stage.parity);
      load_weights(i, stage.index, params.x_bytes());
      load_rows(i, stage.index, &shared.barriers.full[stage.index]);
    }
  }

 private:
  // How often the block fills a stage.
  __device__ int stages_of_all() const { return (block.boxes + T::kSpan - 1) / T::kSpan; }
  // Waits, in a paced block, until earlier weights have come. A block that hurries asks for all
  // once rows may be read, as nothing else is waited for then.
  __device__ void wait_for_turn(Barrier* earlier) const {
    if (!params.hurries) return wait(earlier, 0);
    wait_until([&] { return has_ended(earlier, 0) || shared.hurry != 0; });
  }
  // x_bytes: that are going to arrive on the same barrier.
  __device__ void load_weights(int i, int stage, int x_bytes) const {
    // Where there are several tiles of rows, each reads the weights.
    const Keep keep = gridDim.y == 1 ? Keep::kFirstOut : Keep::kNormal;
    Barrier* full = &shared.barriers.full[stage];
    const int k = (block.first_box + i * T::kSpan) * T::Weights::kStep;
    arrive_expecting(full, params.W_bytes() + x_bytes);
    if (T::kWide && params.sharers == 2) {
      const bool second = block.first_rank > 0;
      load_box(shared.W(stage) + (second ? params.box_rows * kBoxBytes : 0), W, k,
               block.W_row + (second ? params.box_offset : 0), full, keep,
               static_cast<uint16_t>((1 | 1 << params.parts) << block.part));
      return;
    }
    load_box(shared.W(stage), W, k, block.W_row, full, keep);
    if (T::kWide || params.swiglu) {
      load_box(shared.W(stage) + params.box_rows * params.W_row_bytes, W, k,
               block.W_row + params.box_offset, full, keep);
    }
  }
  __device__ void load_rows(int i, int stage, Barrier* here) const {
    if (kByWarps<T> && params.first_boxes > 0) {
      return load_boxes(shared.x(stage), x, block.first_box + i * T::kSpan, block.x_row, here,
                        Keep::kNormal);
    }
#pragma unroll
    for (int j = 0; j < T::kSpan; ++j) {
      load_box(shared.x(stage) + j * params.x_box_bytes(), x,
               (block.first_box + i * T::kSpan + j) * kBoxK, block.x_row, here, Keep::kNormal);
    }
  }
};

// Waits until all that the end of a tile reads is in shared memory, of this block and of those that
// it adds up with. All who compute call it and, where scales are noted, the warp that loads.
template <typename T>
__device__ void sync_for_end(const LinearParams& params) {
  if (params.parts > 1) {
    sync_cluster();
  } else if constexpr (kNotesScales<T>) {
    __syncthreads();
  } else if (threadIdx.x < T::kComputing) {
    sync_computing<T>();
  }
}

// The first of the rows of a tile that a warpgroup multiplies. Where these are W's and wgmma takes
// all 64, they are as near to the tile's end as it takes to read none behind it: some are then in
// two groups, which have the same sums of them.
template <typename T>
__device__ int first_row(const LinearParams& params, int group) {
  if constexpr (T::kWide) return group * (T::kRows / T::kGroups);
  if constexpr (kByWarps<T>) return group * kGroupM;
  return max(0, min(group * kGroupM, 2 * params.box_rows - kGroupM));
}

// What a thread has of packed weights.
template <typename T>
using Held = std::conditional_t<kByWarps<T>, WarpScales<T>, HeldWeights<T>>;

// A warpgroup. Of rows that the tile does not have it sums up whatever lies there.
template <typename T>
__device__ void compute(const Shared<T>& shared, const LinearParams& params,
                        const BlockCoord& block, const Ahead<T>& ahead, Held<T>& held, int group) {
  const int lane = threadIdx.x % kWarpSize;
  const int sharer = (block.first_rank + params.parts) % params.cluster() + block.part;
  const int row = first_row<T>(params, group);
  RingStage stage, done;
  if constexpr (kPaced<T> && !kByWarps<T>) wait(&shared.rows, 0);
  const auto release = [&] {
    Barrier* empty = &shared.barriers.empty[done.index];
    if (lane == 0) arrive(empty);
    if (T::kWide && params.sharers == 2 && lane == 1) arrive(empty, sharer);
    done.next(params.stages);
  };
  int i = 0;  // of the boxes
  const auto add_piece = [&]<int kBehind>(Accumulator<T>& sums) {
    const int begin = i;
    const int end = T::kMostTurns == 1 ? block.boxes : min(i + params.piece_boxes, block.boxes);
    if constexpr (T::Weights::kHeld && !kByWarps<T>) {  // a stage is one box
      for (; i < end; ++i, stage.next(params.stages)) {
        wait(&shared.barriers.full[stage.index], stage.parity);
        const auto of_four = static_cast<int>(static_cast<unsigned>(i) % 4);
        if (of_four == 0) held.take_scales(i);
        held.unpack(shared.W(stage.index), of_four);
        begin_products();
        sums.add_held(held.values, shared.x(stage.index), i == begin);
        commit_products();
        wait_for_products<0>();  // whose registers are then free
        release();
      }
    } else {
      for (; i < end; ++i, stage.next(params.stages)) {
        wait(&shared.barriers.full[stage.index], stage.parity);
        begin_products();
        sums.add(shared.W(stage.index), shared.x(stage.index), row, i == begin);
        commit_products();
        wait_for_products<kBehind>();
        if (i - begin >= kBehind) release();
      }
      wait_for_products<0>();
      if constexpr (T::kMostTurns > 1) release();
    }
  };
  Accumulator<T> sums;
  // Products of few rows are waited for longer than they take. Where K is long, the memory of their
  // stages is worth more.
  constexpr int kFar = 3;
  if constexpr (kByWarps<T>) {
    add_by_warps(shared, params, block, held, sums);
  } else if (T::kRows <= 16 && params.stages > kFar && block.boxes <= 2 * params.stages) {
    add_piece.template operator()<kFar>(sums);
  } else {
    add_piece.template operator()<1>(sums);
  }
  if constexpr (T::kMostTurns > 1) {
    const auto add_next = [&](Accumulator<T>& to) {
      Accumulator<T> piece;
      add_piece.template operator()<1>(piece);
      to += piece;
    };
    if (params.turns > 1) add_next(sums);
    if constexpr (T::kMostTurns > 2) {
      if (params.turns > 2) {
        Accumulator<T> second;
        add_piece.template operator()<1>(second);
        add_next(second);
        sums += second;
      }
    }
  }
  if (!kIsForFew<T>) ahead.put_scales(shared, params);
  // All groups are done with the stages, whose place the sums take.
  sync_computing<T>();
  sums.store(shared.sums(), params.scaled() && scales_first<T>(params) ? shared.scales : nullptr,
             row);
}

// A block of a layer: of the tile with this number.
template <typename T, Ends kEnds>
__device__ __forceinline__ void compute_tile(const CUtensorMap& W, const CUtensorMap& x,
                                             const CUtensorMap& first_x, const LinearParams& params,
                                             int tile) {
  extern __shared__ __align__(1024) std::byte memory[];
  const Shared<T> shared(memory, params);
  if (params.lets_next_start) let_next_start();
  if (threadIdx.x / kWarpSize == T::kComputing / kWarpSize) {  // the warp that loads
    const int lane = threadIdx.x % kWarpSize;
    if (lane < params.stages) {
      init_barrier(&shared.barriers.full[lane], 1);
      init_barrier(&shared.barriers.empty[lane], kByWarps<T>
                                                     ? warps_with_rows(params)
                                                     : params.sharers * T::kComputing / kWarpSize);
    }
    if (lane == 0) {
      prefetch_map(W);
      prefetch_map(x);
      if (kPaced<T> && params.first_boxes > 0) prefetch_map(first_x);
      if constexpr (kPaced<T>) init_barrier(&shared.rows, 1);
      if constexpr (kAdapts<T, kEnds>) {
        init_barrier(&shared.lora_there, 1);
        init_barrier(&shared.ready, 1);
      }
      shared.hurry = 0;
    }
    publish_barriers();
  }
  __syncthreads();
  if (T::kWide && params.sharers > 1) sync_cluster();  // its barriers are there

  const BlockCoord block = block_coord<T>(params, tile);
  // This is the same for a whole warp, which the compiler has to see.
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / kGroupThreads, 0);
  const Loader<T> loader{shared, W, x, first_x, params, block};
  const auto wait_for_rows = [&]<bool asks>() {
    if constexpr (kAdapts<T, kEnds>) {
      if (params.lora.ready != nullptr) return wait_until_ready<T, asks>(params, shared);
    }
    wait_for_previous();
  };
  if (group < T::kGroups) {
    if constexpr (T::kTrades) {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(T::kRegisters));
    }
    Ahead<T> ahead(params, block);
    Held<T> held(shared, params, block, first_row<T>(params, group));
    wait_for_rows.template operator()<kPaced<T>>();
    let_next_start();
    if (kPaced<T> && threadIdx.x == 0) {
      loader.begin_rows();
      shared.hurry = 1;
    }
    ahead.load(params, block);
    compute(shared, params, block, ahead, held, group);
    if constexpr (kIsForFew<T>) ahead.find_scales(shared, params, block);
    if constexpr (kAdapts<T, kEnds>) {
      if (params.lora.table != nullptr) {
        wait(&shared.lora_there, 0);
        add_lora(params, block, shared);
      }
    }
    sync_for_end<T>(params);
    finish<T, kEnds>(params, block, shared, ahead);
  } else {
    if constexpr (T::kTrades) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(T::kLoadRegisters));
    }
    const bool loads = threadIdx.x == T::kComputing;
    if (loads) loader.begin([&] { wait_for_rows.template operator()<true>(); });
    const bool notes = kNotesScales<T> && params.squares != nullptr;
    if (kPaced<T> || notes) {
      __syncwarp();
      wait_for_rows.template operator()<false>();
    }
    if (notes) note_scales(params);
    if (loads) loader.go_on();
    if constexpr (kAdapts<T, kEnds>) {
      if (loads && params.lora.table != nullptr) load_lora(params, shared);
    }
    __syncwarp();
    if (notes) collect_scales(params, block, shared);
    sync_for_end<T>(params);
  }
  // No block goes while others read its sums, or load what they share and say that it is used.
  if (params.cluster() > 1) leave_cluster();
}

template <typename T, Ends kEnds = Ends::kPlain>
__global__ void __maxnreg__((most_registers<T, kEnds>()))
    linear_kernel(const __grid_constant__ CUtensorMap W, const __grid_constant__ CUtensorMap x,
                  const __grid_constant__ CUtensorMap first_x, const LinearParams params) {
  compute_tile<T, kEnds>(W, x, first_x, params, cluster_number());
}

}  // namespace recurve::cuda::sm90
