#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/tree_sum.hpp"
#include "gpt2/kernels/dropout_mask.hpp"
#include "gpt2/kernels/kernels.hpp"
#include "gpt2/kernels/ordered_sum.hpp"

/// @file
/// The reference kernels: plain loops, one output after the other, every sum in the order of its SumOrder.
///
/// They are vectorised over neighbouring outputs (Lanes) and parallel over outputs, so neither threads nor vector
/// registers change the order in which a sum is added. They are templates over the type T of the activations and
/// compute sums in Accumulator<T>.

namespace rankwise {

/// Neighbouring outputs that one reference kernel computes side by side.
constexpr int lane_count = 16;

/// One run of neighbouring columns [first, first + count), count <= lane_count.
struct ColumnBlock {
  std::int64_t first;  ///< first column
  int count;           ///< columns in it
};

/// Number of blocks of @p columns columns.
constexpr std::int64_t column_blocks(std::int64_t columns)
{
  return (columns + lane_count - 1) / lane_count;
}

/// Block @p i of @p columns columns.
constexpr ColumnBlock column_block(std::int64_t i, std::int64_t columns)
{
  const std::int64_t first = i * lane_count;
  return {first, static_cast<int>(std::min<std::int64_t>(lane_count, columns - first))};
}

/// The gradient of a parameter, to which sums of type A are added. Its elements have type A or bf16; a bf16 element
/// is widened, added to and rounded once.
template <class A>
class GradientAccumulator {
 public:
  /// @param gradient  tensor of type A or bf16; outlives this.
  explicit GradientAccumulator(const Tensor& gradient)
      : wide_(gradient.type() == DType::bf16 ? nullptr : gradient.data<A>()),
        rounded_(wide_ != nullptr ? nullptr : gradient.data<bf16>())
  {
  }

  /// One element.
  struct Element {
    const GradientAccumulator& gradient;  ///< the gradient
    std::int64_t i;                       ///< index of the element

    /// Adds @p sum.
    void operator+=(A sum) const
    {
      if (gradient.wide_ != nullptr)
        gradient.wide_[i] += sum;
      else
        gradient.rounded_[i] = bf16(static_cast<float>(static_cast<A>(widen(gradient.rounded_[i])) + sum));
    }
  };
  /// Element @p i.
  Element operator[](std::int64_t i) const { return {*this, i}; }

 private:
  A* wide_;
  bf16* rounded_;
};

/// The sum over rows, in @p order, of term(row, column) for the columns of @p block: ordered_sum() of each column.
/// @param term  term(row, column) returns a number or Factors.
template <class A, class Term>
Lanes<A, lane_count> sum_rows(const SumOrder& order, ColumnBlock block, Term&& term)
{
  const auto sums = stacked_sum(order.leaves(), [&](std::int64_t leaf) {
    Lanes<A, lane_count> sum;
    for (std::int64_t run = 0; run < order.runs(); ++run) {
      const Range rows = order.run(leaf, run);
      for (std::int64_t r = rows.first; r < rows.end(); ++r)
        for (int w = 0; w < block.count; ++w) sum.at[w] = with_term(sum.at[w], term(r, block.first + w));
    }
    return sum;
  });
  return sums + Lanes<A, lane_count>{};
}

/// Calls @p product(O(), T()) for the types O of @p out and T of the factors; Error when the shapes do not match.
template <class Product>
void with_matmul_types(const Matrix& out, const Matrix& a, const Matrix& b, const SumOrder& order,
                       Product&& product)
{
  check(out.rows == a.rows && out.columns == b.columns && a.columns == b.rows,
        "the shapes of the three matrices do not match");
  check(order.terms() == a.columns, "the order of a sum has another number of terms than the contraction");
  with_real_type(a.data.type(), [&]<class T>(T) {
    if (out.data.type() == dtype_of<T>())
      product(T(), T());
    else
      product(Accumulator<T>(), T());
  });
}

/// Copies the keys and values of @p qkv, (R, 3 D heads), into the rows @p tokens of @p cache, (T, 2 D heads).
void append_keys_and_values(const Tensor& cache, const Tensor& qkv, Range tokens);

/// The reference family; each kernel is in the file of its layer.
class ReferenceKernels : public KernelFamily {
 public:
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
  void residual_forward(const Tensor& out, const Tensor& x, const Tensor& y, const Tensor& bias,
                        const Dropout& dropout) const override;
  void dropout(const Tensor& y, const Tensor& x, const Dropout& dropout) const override;
  void row_maximum(const Tensor& maximum, const Tensor& logits, std::int64_t valid) const override;
  void row_sum(const Tensor& sum, const Tensor& target_logit, const Tensor& logits, const Tensor& maximum,
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
};

}  // namespace rankwise
