#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/rnn/rnn.h"
#include "kernels/cuda/sm90/ops.h"
#include "kernels/cuda/sm90/rnn/rnn_in_cluster.cuh"

namespace recurve::cuda::sm90 {
namespace {

// The rows of sequences [first, first + members), at most kRnnSeqs. parities: of the barriers of
// both buffers, a bit each.
template <int kSlabs>
__device__ void advance_group(const RnnArgs& a, const RnnBlockCoord& at, int first, int members,
                              const RnnParams& params, const RnnMemory<kSlabs>& memory,
                              const RnnWeights<kSlabs>& weights, RnnExchange& exchange,
                              uint32_t& parities) {
  const auto bytes = static_cast<uint32_t>(members * sm80::kRnnParts * a.DH * 2);  // of h in a row
  int rows = 1;
  for (int b = first; b < first + members; ++b) {
    rows = max(rows, a.seqs.begin[b + 1] - a.seqs.begin[b]);
  }
  __syncthreads();
  load_first_h(a, at, first, members, memory);
  RnnItem item(a, at, first, members);
  if (threadIdx.x == 0) {
    if (rows > 1) arrive_expecting(&exchange.full[1], bytes);
    if (rows > 2) arrive_expecting(&exchange.full[0], bytes);
  }
  sync_cluster();  // all have read their first h, and can be sent the next
  for (int t = 0; t < rows; ++t) {
    const int buffer = t % 2;
    RnnComing<kSlabs> coming;
    const bool in_memory = weights.in_memory(params);
    if (in_memory) {
      coming.load(memory, 0);
      coming.load(memory, 1);
    }
    if (t > 0) {
      wait(&exchange.full[buffer], parities >> buffer & 1);
      parities ^= 1u << buffer;
      if (threadIdx.x == 0 && t + 2 < rows) arrive_expecting(&exchange.full[buffer], bytes);
    }
    const RnnProducts<kSlabs> products(at, memory, buffer);
    if (in_memory) {
      products.put_all_sums(at, memory, weights, coming);
    } else {
      products.put_sums(at, memory, weights);
    }
    __syncthreads();
    // No block writes sums again before this block's own h has come back to it.
    const bool ends = t < item.length;
    if (ends) item.advance(a, at, memory);
    if (t + 1 < rows) send_h(at, params, item.h, members, 1 - buffer, memory, exchange);
    if (ends) item.put_y();
    item.load_x(a, at, t + 1);
  }
  if (item.there) {
    a.h[item.state] = item.h;
    sm80::put_channel(a, item.state, item.rest);
  }
}

// Clusters: heads x params.clusters, each with every params.clusters-th group of sequences in turn.
template <int kSlabs>
__global__ void __launch_bounds__(kRnnThreads, 1) cluster_kernel(RnnArgs a, RnnParams params) {
  extern __shared__ uint4 dynamic[];
  __shared__ RnnExchange exchange;
  let_next_start();
  const RnnBlockCoord at(a, params);
  const RnnMemory<kSlabs> memory(dynamic, params);
  const RnnWeights<kSlabs> weights(a, at, params, memory.weights);
  for (int i = static_cast<int>(threadIdx.x); i < 2 * memory.kPieces; i += kRnnThreads) {
    memory.h[i] = make_uint4(0, 0, 0, 0);
  }
  if (threadIdx.x == 0) {
    init_barrier(&exchange.full[0], 1);
    init_barrier(&exchange.full[1], 1);
    publish_barriers();
  }
  wait_for_previous();
  uint32_t parities = 0;
  for (int first = cluster_number() / a.H * params.seqs; first < a.seqs.num_seqs;
       first += params.clusters * params.seqs) {
    advance_group(a, at, first, min(params.seqs, a.seqs.num_seqs - first), params, memory, weights,
                  exchange, parities);
  }
}

const char* const kName = "rnn, all rows";

// Lets the kernel have clusters of 16 blocks, with so much shared memory each.
void prepare(void (*kernel)(RnnArgs, RnnParams), size_t bytes) {
  abort_if_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(bytes)),
                  kName);
  abort_if_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
                  kName);
}

template <int kSlabs>
void launch(const RnnArgs& args, const RnnPlan& plan, Stream& stream) {
  const auto kernel = cluster_kernel<kSlabs>;
  const auto bytes = static_cast<size_t>(rnn_bytes(kSlabs, plan.units));
  prepare(kernel, bytes);
  launch_early(stream, kName, kernel,
               {.grid = static_cast<unsigned>(plan.clusters * args.H * plan.cluster),
                .threads = kRnnThreads,
                .shared = bytes,
                .cluster = static_cast<unsigned>(plan.cluster)},
               args,
               RnnParams{plan.cluster, plan.units, plan.seqs, plan.clusters,
                         rnn_weight_bytes(kSlabs, plan.units)});
}

// How many clusters of each size the GPU runs at once, each block on its own multiprocessor.
std::array<int, kRnnClusters.size()> clusters_at_once(int bytes) {
  const auto kernel = cluster_kernel<kRnnMostSlabs>;
  prepare(kernel, static_cast<size_t>(bytes));
  std::array<int, kRnnClusters.size()> counts{};
  for (size_t i = 0; i < counts.size(); ++i) {
    cudaLaunchAttribute size = {};
    size.id = cudaLaunchAttributeClusterDimension;
    size.val.clusterDim = {static_cast<unsigned>(kRnnClusters[i]), 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(kRnnClusters[i]));
    config.blockDim = dim3(kRnnThreads);
    config.dynamicSmemBytes = static_cast<size_t>(bytes);
    config.attrs = &size;
    config.numAttrs = 1;
    abort_if_failed(cudaOccupancyMaxActiveClusters(&counts[i], kernel, &config), kName);
  }
  return counts;
}

RnnPlan plan_of(const RnnArgs& args, Stream& stream) {
  use(stream);
  // One GPU is asked for all: where others differ the plan is as right for them, if slower.
  static const int most_bytes =
      static_cast<int>(most_shared_memory(kName) - sizeof(RnnExchange) - 1024);
  static const auto at_once = clusters_at_once(most_bytes);
  return plan_rnn({args.H, args.DH, args.seqs.num_seqs, most_bytes, at_once});
}

}  // namespace

// Fewer rows are sooner done one by one: loading the matrix takes as long as some of them.
constexpr int kFewestRows = 4;

void run(const RnnArgs& args, Stream& stream) {
  if (!sm80::rnn_fits(args) && sm80::rnn_has_tiles(args) && args.seqs.max_len >= kFewestRows) {
    const RnnPlan plan = plan_of(args, stream);
    if (plan.cluster > 0) {
      switch (rnn_slabs(args.DH)) {
        case 1:
          return launch<1>(args, plan, stream);
        case 2:
          return launch<2>(args, plan, stream);
        default:
          return launch<3>(args, plan, stream);
      }
    }
  }
  sm80::run(args, stream);
}

}  // namespace recurve::cuda::sm90
