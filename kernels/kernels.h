#pragma once
#include <functional>
#include <string>

#include "kernels/ops/activation.h"
#include "kernels/ops/add.h"
#include "kernels/ops/causal_conv1d.h"
#include "kernels/ops/embed.h"
#include "kernels/ops/feature_map.h"
#include "kernels/ops/gated_rms_norm.h"
#include "kernels/ops/gather_rows.h"
#include "kernels/ops/gla.h"
#include "kernels/ops/gla_gate.h"
#include "kernels/ops/glu.h"
#include "kernels/ops/head_norm_gate.h"
#include "kernels/ops/head_rms_norm.h"
#include "kernels/ops/headwise_linear.h"
#include "kernels/ops/hgrn_gate.h"
#include "kernels/ops/layer_norm.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/linear_recurrence.h"
#include "kernels/ops/mlstm.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/rnn.h"
#include "kernels/ops/rotary.h"
#include "kernels/ops/sample.h"
#include "kernels/ops/selective_scan.h"
#include "kernels/ops/skip_gate.h"
#include "kernels/ops/soft_cap.h"
#include "kernels/ops/ssd.h"
#include "kernels/ops/swiglu.h"
#include "kernels/ops/take_tokens.h"

namespace recurve {

class Stream;

// One op of a backend: the function, and the name of the implementation behind it for the start-up
// table ("reference", "cpu/avx3").
template <typename Args>
struct Op {
  void (*run)(const Args&, Stream&) = nullptr;
  const char* implementation = "";
  bool bf16_state = false;  // reads and writes StateData of BF16
  // The chunk form of heads that fill tiles of 64 rows rounds queries, keys, values and, as it
  // multiplies with it, the state to bf16.
  bool rounds_in_tiles = false;
  // What of arguments of these sizes and types it cannot take: "2048 keys a head, but 1536 at
  // most". Empty: nothing. Pointers are not followed, and of a batch nothing needs to be known yet.
  // Not set: it takes all that its header allows. Families ask before they load anything, so that a
  // kernel never meets what it has no room for.
  std::function<std::string(const Args&)> cannot = {};
  void operator()(const Args& args, Stream& stream) const { run(args, stream); }
};

struct LinearOp : Op<LinearArgs> {
  // Whether x is rounded to bf16 beside this matrix: then who makes x may do so. null: never.
  bool (*rounds)(const Matrix& W) = nullptr;
  bool takes_bf16(const Matrix& W) const { return rounds != nullptr && rounds(W); }
  // Whether LinearArgs::conv may be this. null: never.
  bool (*convolves)(const LinearArgs& args, const CausalConv1dArgs& conv) = nullptr;
  bool takes_conv(const LinearArgs& args, const CausalConv1dArgs& conv) const {
    return convolves != nullptr && convolves(args, conv);
  }
  // Whether a layer may begin the norm of the one that reads its rows: of so many at most.
  int most_rows_of_begun_norm = 0;
  bool begins_norm(const Matrix& W, const Matrix& next, int rows) const {
    return rows <= most_rows_of_begun_norm && takes_begun_norm(next) && takes_bf16(W);
  }
  // Whether one may go on with a norm that is begun.
  bool takes_begun_norm(const Matrix& W) const {
    return most_rows_of_begun_norm > 0 && takes_bf16(W);
  }
};

struct SsdOp : Op<SsdArgs> {
  // Whether it takes SsdArgs::next of these arguments, whatever that and y are. null: never.
  bool (*begins)(const SsdArgs& args) = nullptr;
  bool begins_norm(const SsdArgs& args) const { return begins != nullptr && begins(args); }
};

// Every computation the models use. A backend fills one table at start: the reference's, with what
// this machine does better written over it. Models call through it and never ask where they run.
// The arguments are trusted here: whoever fills them has checked them.
struct Kernels {
  Op<EmbedArgs> embed;
  Op<GatherRowsArgs> gather_rows;
  Op<RmsNormArgs> rms_norm;
  LinearOp linear;
  Op<MlstmArgs> mlstm;
  Op<HeadNormGateArgs> head_norm_gate;
  Op<SwigluArgs> swiglu;
  Op<SoftCapArgs> soft_cap;
  Op<CausalConv1dArgs> causal_conv1d;
  Op<SelectiveScanArgs> selective_scan;
  SsdOp ssd;
  Op<LinearRecurrenceArgs> linear_recurrence;
  Op<GatedRmsNormArgs> gated_rms_norm;
  Op<GlaArgs> gla;
  Op<GlaGateArgs> gla_gate;
  Op<HgrnGateArgs> hgrn_gate;
  Op<HeadRmsNormArgs> head_rms_norm;
  Op<PositionsArgs> positions;
  Op<RotaryArgs> rotary;
  Op<ActivationArgs> activation;
  Op<RnnArgs> rnn;
  Op<LayerNormArgs> layer_norm;
  Op<HeadwiseLinearArgs> headwise_linear;
  Op<GluArgs> glu;
  Op<SkipGateArgs> skip_gate;
  Op<AddArgs> add;
  Op<FeatureMapArgs> feature_map;
  Op<TakeTokensArgs> take_tokens;
  Op<SampleArgs> sample;

  // Calls visit(name, pointer to member) for each op, in the order above.
  template <typename Visit>
  static void for_each_op(Visit visit) {
    visit("embed", &Kernels::embed);
    visit("gather_rows", &Kernels::gather_rows);
    visit("rms_norm", &Kernels::rms_norm);
    visit("linear", &Kernels::linear);
    visit("mlstm", &Kernels::mlstm);
    visit("head_norm_gate", &Kernels::head_norm_gate);
    visit("swiglu", &Kernels::swiglu);
    visit("soft_cap", &Kernels::soft_cap);
    visit("causal_conv1d", &Kernels::causal_conv1d);
    visit("selective_scan", &Kernels::selective_scan);
    visit("ssd", &Kernels::ssd);
    visit("linear_recurrence", &Kernels::linear_recurrence);
    visit("gated_rms_norm", &Kernels::gated_rms_norm);
    visit("gla", &Kernels::gla);
    visit("gla_gate", &Kernels::gla_gate);
    visit("hgrn_gate", &Kernels::hgrn_gate);
    visit("head_rms_norm", &Kernels::head_rms_norm);
    visit("positions", &Kernels::positions);
    visit("rotary", &Kernels::rotary);
    visit("activation", &Kernels::activation);
    visit("rnn", &Kernels::rnn);
    visit("layer_norm", &Kernels::layer_norm);
    visit("headwise_linear", &Kernels::headwise_linear);
    visit("glu", &Kernels::glu);
    visit("skip_gate", &Kernels::skip_gate);
    visit("add", &Kernels::add);
    visit("feature_map", &Kernels::feature_map);
    visit("take_tokens", &Kernels::take_tokens);
    visit("sample", &Kernels::sample);
  }

  // Calls visit(name, implementation) for each op.
  template <typename Visit>
  void for_each(Visit visit) const {
    for_each_op([&](const char* name, auto op) { visit(name, (this->*op).implementation); });
  }
};

}  // namespace recurve
