#pragma once
#include <span>

#include "kernels/kernels.h"

// What a backend does together that layers describe one after the other. Families call these and
// never ask what the backend can: it answers from its table.
namespace recurve {

// Rows that an op leaves for a linear layer: in fp32 or, where the layer would round them to bf16
// itself, in bf16. An op takes both pointers, and so does the layer.
struct Activations {
  float* f32 = nullptr;      // (rows, K): memory for them in fp32
  uint16_t* bf16 = nullptr;  // (rows, K): where they are instead, or null
};

// Rows for the layer with the weights `next`. f32: (rows, next.K). spare: memory of `spare_width`
// floats a row that are not used until the layer has run; may be f32, if what makes the rows does
// not read them there.
Activations rows_for(const Kernels& kernels, const Matrix& next, float* f32, float* spare,
                     int64_t spare_width);

// The same for several layers that read the same rows: in fp32 and in bf16 where they do not agree,
// and f32 is null where none takes it so. f32: (rows, K). spare: (rows, K / 2) floats that are
// not used until all of them have run.
Activations rows_for(const Kernels& kernels, std::span<const Matrix> next, float* f32,
                     float* spare);

// Has a layer that they are for read such rows.
void read_rows(const Kernels& kernels, const Activations& rows, LinearArgs& next);

// Makes x of `next` of what `first` leaves in y. between: (first.rows, first.outputs()) floats.
void join(const Kernels& kernels, LinearArgs& first, LinearArgs& next, float* between);

// Rows from the layer with the weights `first` to that with `next`: in bf16 where both can.
// f32, spare: (rows, next.K) floats each.
Activations rows_between(const Kernels& kernels, const Matrix& first, const Matrix& next,
                         float* f32, float* spare);

// Whether the matrix of a layer is to be a Matrix::transposed, as zeros of its x spare work then.
bool is_transposed_for_zeros(const Kernels& kernels, const WeightFormat& format);

// A linear layer, and the convolution over some of its outputs: conv.x points into linear.y, where
// these columns are not left if both are done together.
void linear_conv(const Kernels& kernels, LinearArgs linear, const CausalConv1dArgs& conv,
                 Stream& stream);

// Linear layers of the same rows of which none reads what another writes. Where a layer has an
// activation, y is memory for its outputs in fp32 even if it has y_bf16, and does not overlap that.
void linear_group(const Kernels& kernels, std::span<const LinearArgs> layers, Stream& stream);

// A layer norm of one group, and the token shift that reads it: shift.x is norm.y, where the normed
// rows are not left if both are done together.
void norm_shift(const Kernels& kernels, const LayerNormArgs& norm, TokenShiftArgs shift,
                Stream& stream);

// RWKV-7's gate, its recurrence and the norm behind that. What the recurrence reads of the gate,
// and its o, are not left there if all are done together.
void rwkv7_cell(const Kernels& kernels, const Rwkv7GateArgs& gate, Rwkv7Args recurrence,
                const HeadNormBonusArgs& out, Stream& stream);

// Floats that what is left of a deferred norm of so many rows takes.
size_t floats_of_norm(const Kernels& kernels, int rows, int64_t D);

// Has the op that makes x do what it can of the norm before the layer that reads x, with the
// weights `next` and `norm` (next.K), and leave the rest to that layer, where the two can share the
// work. Gives what is left for LinearArgs::deferred of that layer, or nothing. memory: where it
// goes; the second: (rows, next.K) floats, such as y itself.
DeferredRmsNorm defer_norm(const Kernels& kernels, LinearArgs& args, const Matrix& next,
                           const float* norm, const DeferredRmsNorm& memory);
DeferredRmsNorm defer_norm(const Kernels& kernels, SsdArgs& args, const Matrix& next,
                           const float* norm, float* memory);

}  // namespace recurve
