#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "common/memory/device.hpp"
#include "gpt2/kernels/kernels.hpp"
#include "tests/bench/allocation_count.hpp"

/// @file
/// Where the time of a step goes: a family of kernels that hands each call to another family and adds up, by group,
/// time, arithmetic and the traffic with memory that no implementation can do without.

namespace rankwise {

/// The groups that the time of a step is divided among.
enum class KernelGroup : std::uint8_t {
  matmul,         ///< matrix products, the head's logits included
  matmul_gelu,    ///< products with GELU behind them, where they are one call: on a GPU
  attention,      ///< all kernels of attention, copy()
  norm,           ///< norm_forward(), norm_backward()
  gelu,           ///< bias_gelu_forward(), gelu_backward(), tanh_forward(), tanh_backward()
  loss,           ///< everything over the logits but their product
  embedding,      ///< tokens and positions
  residual,       ///< residual_forward(), dropout(), bias_backward()
  gradient_sum,   ///< clearing gradients and adding them up
  gradient_norm,  ///< squared_norm(), first_not_finite()
  optimizer,      ///< adamw()
};
/// Number of groups.
constexpr int kernel_group_count = 11;

/// The name that is printed: "matmul", ..., "AdamW".
std::string_view name_of(KernelGroup group);

/// The least work that any implementation of a call has to do.
struct MinimalWork {
  double flops = 0;  ///< floating-point operations of the formula in gpt2/kernels/kernels.hpp
  double bytes = 0;  ///< every input read once, every output written once; what accumulates is read as well
};

/// Totals over the calls of one group.
struct GroupTotal {
  std::int64_t calls = 0;             ///< how many
  double seconds = 0;                 ///< wall time until what they ask for was done
  double queued_s = 0;                ///< until they returned: less on a GPU, which works asynchronously
  MinimalWork work{};                 ///< of all of them
  AllocationCount allocations{0, 0};  ///< inside them

  /// One more call.
  void add(double call_seconds, double call_queued_s, const MinimalWork& call_work,
           const AllocationCount& call_allocations);
};

/// What a family of kernels has done, by group.
class MeasuredGroups {
 public:
  /// Totals over the calls of @p group so far.
  GroupTotal& total(KernelGroup group) { return totals_[static_cast<std::size_t>(group)]; }

 private:
  std::array<GroupTotal, kernel_group_count> totals_{};
};

/// Kernels that measure those of another family.
///
/// How arithmetic is counted: a multiplication and an addition are two operations; a comparison, a division, a root, an
/// exponential and a hyperbolic tangent are one each. With n elements in a call:
///
///     matmul      2 m n k, and m n for a bias or for accumulating
///     attention   4 D a visible pair of query and key forwards (q k', then times v), 10 D backwards (q k' again, and
///                 the gradients of weights, v, q and k); the soft-max, 1 in D of that, is left out
///     norm        8 n forwards, 14 n backwards         GELU       10 n forwards, 16 n backwards
///     loss        4 n over the logits forwards, 3 n backwards
///     AdamW       16 n                                 gradient norm   2 n
///     the rest    1 for each addition, and for each comparison of two largest logits
///
/// Dropout is not counted. The rows that the token embedding reads and writes are counted as if all tokens differed.
/// @param kernels  do the work.
/// @param into     gets the totals of each call; outlives the kernels.
/// @param stream   of a GPU: it is waited for before and after each call, and a product with GELU stays one call, since
///                 a library may make one kernel of it. Null on the CPU, where the two are measured one by one.
Kernels make_measured_kernels(Kernels kernels, MeasuredGroups& into, Stream* stream = nullptr);

}  // namespace rankwise
