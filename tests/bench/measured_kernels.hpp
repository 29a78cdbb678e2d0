#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

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

/// A family of kernels that measures another one.
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
class MeasuredKernels final : public KernelFamily {
 public:
  /// @param kernels  does the work.
  /// @param stream   of a GPU: it is waited for before and after each call, and a product with GELU stays one call, since
  ///                 a library may make one kernel of it. Null on the CPU, where the two are measured one by one.
  explicit MeasuredKernels(Kernels kernels, Stream* stream = nullptr)
      : kernels_(std::move(kernels)), stream_(stream)
  {
  }

  /// Totals over the calls of @p group so far.
  const GroupTotal& total(KernelGroup group) const { return totals_[static_cast<std::size_t>(group)]; }
  /// Counts a call that was made elsewhere.
  void record(KernelGroup group, double seconds, const MinimalWork& work)
  {
    totals_[static_cast<std::size_t>(group)].add(seconds, seconds, work, {0, 0});
  }

  void matmul(const Matrix& out, const Matrix& a, const Matrix& b, const SumOrder& order, const Tensor& bias,
              bool accumulate) const override;
  void bias_backward(const Tensor& dbias, const Tensor& dy, const SumOrder& order) const override;
  void token_forward(const Tensor& y, const Tensor& wte, const Tensor& tokens, Range vocabulary) const override;
  void token_backward(const Tensor& dwte, const Tensor& dx, const Tensor& tokens, Range vocabulary,
                      const SumOrder& order) const override;
  void position_forward(const Tensor& x, const Tensor& y, const Tensor& wpe, const Rows& rows,
                        const Dropout& dropout) const override;
  void position_backward(const Tensor& dwpe, const Tensor& dx, const Rows& rows) const override;
  void norm_forward(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x, const Tensor& weight,
                    const Tensor& bias, double epsilon) const override;
  void norm_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                     const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                     const SumOrder& order) const override;
  void attention_forward(const Tensor& y, const Tensor& log_sum_exp, const Tensor& qkv, const AttentionShape& shape,
                         const Dropout& dropout) const override;
  void cached_attention_forward(const Tensor& y, const Tensor& cache, const Tensor& qkv,
                                const AttentionShape& shape, Range tokens) const override;
  void attention_backward(const Tensor& dqkv, const Tensor& dy, const Tensor& y, const Tensor& log_sum_exp,
                          const Tensor& qkv, const AttentionShape& shape, const Dropout& dropout) const override;
  void attention_partial(const SoftmaxPartial& partial, const Tensor& qkv, const Tensor& kv,
                         const AttentionShape& shape, const AttentionRuns& runs,
                         const Dropout& dropout) const override;
  void attention_merge(const SoftmaxPartial& into, const SoftmaxPartial& from) const override;
  void attention_divide(const Tensor& y, const Tensor& log_sum_exp, const SoftmaxPartial& partial) const override;
  void attention_partial_backward(const Tensor& dq, const Tensor& dkv, const Tensor& dy, const Tensor& y,
                                  const Tensor& log_sum_exp, const Tensor& qkv, const Tensor& kv,
                                  const AttentionShape& shape, const AttentionRuns& runs,
                                  const Dropout& dropout) const override;
  void copy(const Matrix& to, const Matrix& from) const override;
  void bias_gelu_forward(const Tensor& y, const Tensor& x, const Tensor& bias) const override;
  void gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x) const override;
  void tanh_forward(const Tensor& y, const Tensor& x) const override;
  void tanh_backward(const Tensor& dx, const Tensor& dy, const Tensor& y) const override;
  void matmul_gelu_forward(const Tensor& y, const Matrix& x, const Matrix& a, const Matrix& b,
                           const SumOrder& order, const Tensor& bias) const override;
  void matmul_gelu_backward(const Matrix& dx, const Matrix& dy, const Matrix& b, const SumOrder& order,
                            const Tensor& x) const override;
  void residual_forward(const Tensor& out, const Tensor& x, const Tensor& y, const Tensor& bias,
                        const Dropout& dropout) const override;
  void dropout(const Tensor& y, const Tensor& x, const Dropout& dropout) const override;
  void row_maximum(const Tensor& maximum, const Tensor& logits, std::int64_t valid) const override;
  void row_sum(const Tensor& sum, const Tensor& target_logit, const Tensor& logits, const Tensor& maximum,
               const Tensor& targets, Range vocabulary, const SumOrder& order) const override;
  void row_statistics(const Tensor& maximum, const Tensor& sum, const Tensor& target_logit, const Tensor& logits,
                      const Tensor& targets, Range vocabulary, const SumOrder& order) const override;
  ExactScalar loss_sum(const Tensor& sum, const Tensor& maximum, const Tensor& target_logit,
                       const Tensor& targets) const override;
  void loss_backward(const Tensor& logits, const Tensor& maximum, const Tensor& sum, const Tensor& targets,
                     Range vocabulary, double weight) const override;
  void route(const Tensor& probabilities, const Tensor& choices, const Tensor& weights,
             const Tensor& logits) const override;
  void route_backward(const Tensor& dlogits, const Tensor& dweights, const Tensor& probabilities,
                      const Tensor& choices, const Tensor& weights, const Tensor& pull) const override;
  void scatter_rows(const Tensor& rows, const Tensor& x, const Tensor& places) const override;
  void combine_rows(const Tensor& y, const Tensor& rows, const Tensor& places,
                    const Tensor& weights) const override;
  void combine_rows_backward(const Tensor& drows, const Tensor& dweights, const Tensor& dy, const Tensor& rows,
                             const Tensor& places, const Tensor& weights) const override;
  void add(const Tensor& into, const Tensor& from) const override;
  void maximum(const Tensor& into, const Tensor& from) const override;
  ExactScalar squared_norm(const Tensor& x) const override;
  std::optional<std::int64_t> first_not_finite(const Tensor& x) const override;
  void adamw(const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& gradient, const AdamWStep& step,
             const Tensor& rounded) const override;
  void convert(const Tensor& to, const Tensor& from) const override;

 private:
  template <class Call>
  auto measure(KernelGroup group, const MinimalWork& work, const Call& call) const;

  Kernels kernels_;
  Stream* stream_;
  mutable std::array<GroupTotal, kernel_group_count> totals_{};
};

}  // namespace rankwise
