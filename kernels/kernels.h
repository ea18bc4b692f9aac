#pragma once
#include "kernels/ops/embed.h"
#include "kernels/ops/gather_rows.h"
#include "kernels/ops/head_norm_gate.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/mlstm.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/soft_cap.h"
#include "kernels/ops/swiglu.h"

namespace recurve {

class Stream;

// One op of a backend: the function, and the name of the implementation behind it for the start-up
// table ("reference", "cpu/avx3").
template <typename Args>
struct Op {
  void (*run)(const Args&, Stream&) = nullptr;
  const char* implementation = "";
  void operator()(const Args& args, Stream& stream) const { run(args, stream); }
};

// Every computation the models use. A backend fills one table at start: the reference's, with what
// this machine does better written over it. Models call through it and never ask where they run.
// The arguments are trusted here: whoever fills them has checked them.
struct Kernels {
  Op<EmbedArgs> embed;
  Op<GatherRowsArgs> gather_rows;
  Op<RmsNormArgs> rms_norm;
  Op<LinearArgs> linear;
  Op<MlstmArgs> mlstm;
  Op<HeadNormGateArgs> head_norm_gate;
  Op<SwigluArgs> swiglu;
  Op<SoftCapArgs> soft_cap;

  // Calls visit(name, implementation) for each op, in the order above.
  template <typename Visit>
  void for_each(Visit visit) const {
    visit("embed", embed.implementation);
    visit("gather_rows", gather_rows.implementation);
    visit("rms_norm", rms_norm.implementation);
    visit("linear", linear.implementation);
    visit("mlstm", mlstm.implementation);
    visit("head_norm_gate", head_norm_gate.implementation);
    visit("swiglu", swiglu.implementation);
    visit("soft_cap", soft_cap.implementation);
  }
};

}  // namespace recurve
