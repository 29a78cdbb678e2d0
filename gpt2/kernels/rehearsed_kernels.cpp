#include "gpt2/kernels/kernels.hpp"

namespace rankwise {

namespace {

class RehearsedKernels final : public KernelFamily {
 public:
  void matmul(const Matrix&, const Matrix&, const Matrix&, const SumOrder&, const Tensor&, bool) const override {}
  void bias_backward(const Tensor&, const Tensor&, const SumOrder&) const override {}
  void token_forward(const Tensor&, const Tensor&, const Tensor&, Range) const override {}
  void token_backward(const Tensor&, const Tensor&, const Tensor&, Range, const SumOrder&) const override {}
  void position_forward(const Tensor&, const Tensor&, const Tensor&, const Rows&, const Dropout&) const override {}
  void position_backward(const Tensor&, const Tensor&, const Rows&) const override {}
  void norm_forward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                    double) const override
  {
  }
  void norm_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                     const Tensor&, const Tensor&, const SumOrder&) const override
  {
  }
  void attention_forward(const Tensor&, const Tensor&, const Tensor&, const AttentionShape&,
                         const Dropout&) const override
  {
  }
  void cached_attention_forward(const Tensor&, const Tensor&, const Tensor&, const AttentionShape&,
                                Range) const override
  {
  }
  void attention_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          const AttentionShape&, const Dropout&) const override
  {
  }
  void attention_partial(const SoftmaxPartial&, const Tensor&, const Tensor&, const AttentionShape&,
                         const AttentionRuns&, const Dropout&) const override
  {
  }
  void attention_merge(const SoftmaxPartial&, const SoftmaxPartial&) const override {}
  void attention_divide(const Tensor&, const Tensor&, const SoftmaxPartial&) const override {}
  void attention_partial_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                  const Tensor&, const Tensor&, const AttentionShape&, const AttentionRuns&,
                                  const Dropout&) const override
  {
  }
  void copy(const Matrix&, const Matrix&) const override {}
  void bias_gelu_forward(const Tensor&, const Tensor&, const Tensor&) const override {}
  void gelu_backward(const Tensor&, const Tensor&, const Tensor&) const override {}
  void tanh_forward(const Tensor&, const Tensor&) const override {}
  void tanh_backward(const Tensor&, const Tensor&, const Tensor&) const override {}
  void residual_forward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Dropout&) const override
  {
  }
  void dropout(const Tensor&, const Tensor&, const Dropout&) const override {}
  void row_maximum(const Tensor&, const Tensor&, std::int64_t) const override {}
  void row_sum(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, Range,
               const SumOrder&) const override
  {
  }
  ExactScalar loss_sum(const Tensor&, const Tensor&, const Tensor&, const Tensor&) const override { return {}; }
  void loss_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, Range, double) const override {}
  void route(const Tensor&, const Tensor& choices, const Tensor&, const Tensor& logits) const override
  {
    // Choices decide who sends how much to whom: here every expert is chosen equally often.
    const std::int64_t experts = logits.shape()[1];
    std::int32_t* const chosen = choices.data<std::int32_t>();
    for (std::int64_t i = 0; i < choices.elements(); ++i) chosen[i] = static_cast<std::int32_t>(i % experts);
  }
  void route_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                      const Tensor&) const override
  {
  }
  void scatter_rows(const Tensor&, const Tensor&, const Tensor&) const override {}
  void combine_rows(const Tensor&, const Tensor&, const Tensor&, const Tensor&) const override {}
  void combine_rows_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                             const Tensor&) const override
  {
  }
  void add(const Tensor&, const Tensor&) const override {}
  void maximum(const Tensor&, const Tensor&) const override {}
  ExactScalar squared_norm(const Tensor&) const override { return {}; }
  std::optional<std::int64_t> first_not_finite(const Tensor&) const override { return {}; }
  void adamw(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const AdamWStep&,
             const Tensor&) const override
  {
  }
  void convert(const Tensor&, const Tensor&) const override {}
};

}  // namespace

Kernels make_rehearsed_kernels()
{
  return std::make_unique<RehearsedKernels>();
}

}  // namespace rankwise
