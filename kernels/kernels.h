#pragma once
#include <type_traits>

#include "kernels/ops/activation.h"
#include "kernels/ops/add.h"
#include "kernels/ops/causal_conv1d.h"
#include "kernels/ops/delta_gate.h"
#include "kernels/ops/delta_rule.h"
#include "kernels/ops/embed.h"
#include "kernels/ops/expert_linear.h"
#include "kernels/ops/feature_map.h"
#include "kernels/ops/gated_rms_norm.h"
#include "kernels/ops/gather_rows.h"
#include "kernels/ops/gla.h"
#include "kernels/ops/gla_gate.h"
#include "kernels/ops/glu.h"
#include "kernels/ops/head_norm_bonus.h"
#include "kernels/ops/head_norm_gate.h"
#include "kernels/ops/head_rms_norm.h"
#include "kernels/ops/headwise_linear.h"
#include "kernels/ops/held_rows.h"
#include "kernels/ops/hgrn_gate.h"
#include "kernels/ops/layer_norm.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/linear_recurrence.h"
#include "kernels/ops/lora.h"
#include "kernels/ops/mlstm.h"
#include "kernels/ops/paged_attention.h"
#include "kernels/ops/rg_lru.h"
#include "kernels/ops/ring_attention.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/rnn.h"
#include "kernels/ops/rotary.h"
#include "kernels/ops/router.h"
#include "kernels/ops/rwkv7.h"
#include "kernels/ops/rwkv7_gate.h"
#include "kernels/ops/sample.h"
#include "kernels/ops/selective_scan.h"
#include "kernels/ops/skip_gate.h"
#include "kernels/ops/soft_cap.h"
#include "kernels/ops/ssd.h"
#include "kernels/ops/take_tokens.h"
#include "kernels/ops/token_shift.h"

namespace recurve {

// A table of ops: of each place (see kernels/ops/op.h) the member, by its own name.
template <typename... Places>
struct OpTable : Places... {
  // The same and more.
  template <typename... More>
  using With = OpTable<Places..., More...>;

  // Calls visit(name, pointer to member) for each op, in the order of the list.
  template <typename Visit>
  static void for_each_op(Visit visit) {
    (visit(Places::kName, Places::kOp), ...);
  }

  // Writes over the ops that `run`, a function object without state, has arguments for.
  template <typename Run>
  void put(const char* implementation, Run run) {
    for_each_op([&](const char*, auto place) {
      auto& op = this->*place;
      if constexpr (std::is_invocable_v<Run,
                                        const typename std::remove_reference_t<decltype(op)>::Args&,
                                        Stream&>) {
        op.run = run;
        op.implementation = implementation;
        op.scratch = nullptr;
      }
    });
  }

  // Calls visit(name, implementation) for each op.
  template <typename Visit>
  void for_each(Visit visit) const {
    for_each_op([&](const char* name, auto op) { visit(name, (this->*op).implementation); });
  }
};

// Every op there is: one line each. A backend that has it declares `run` with its arguments, from
// which its table follows.
using AllOps = OpTable<EmbedKernel,             //
                       GatherRowsKernel,        //
                       RmsNormKernel,           //
                       LinearKernel,            //
                       LoraKernel,              //
                       MlstmKernel,             //
                       HeadNormGateKernel,      //
                       SoftCapKernel,           //
                       CausalConv1dKernel,      //
                       SelectiveScanKernel,     //
                       HeldRowsKernel,          //
                       SsdKernel,               //
                       LinearRecurrenceKernel,  //
                       GatedRmsNormKernel,      //
                       GlaKernel,               //
                       GlaGateKernel,           //
                       HgrnGateKernel,          //
                       HeadRmsNormKernel,       //
                       PositionsKernel,         //
                       RotaryKernel,            //
                       ActivationKernel,        //
                       RnnKernel,               //
                       LayerNormKernel,         //
                       HeadwiseLinearKernel,    //
                       GluKernel,               //
                       SkipGateKernel,          //
                       AddKernel,               //
                       FeatureMapKernel,        //
                       TokenShiftKernel,        //
                       Rwkv7GateKernel,         //
                       Rwkv7Kernel,             //
                       HeadNormBonusKernel,     //
                       DeltaGateKernel,         //
                       DeltaRuleKernel,         //
                       RgLruKernel,             //
                       RingAttentionKernel,     //
                       AppendKernel,            //
                       PagedAttentionKernel,    //
                       RouterKernel,            //
                       ExpertLinearKernel,      //
                       TakeTokensKernel,        //
                       SampleKernel>;

// Every computation the models use. A backend fills one table at start: the reference's, with what
// this machine does better written over it. Models call through it and never ask where they run.
// The arguments are trusted here: the caller has checked them.
struct Kernels : AllOps {};

}  // namespace recurve
