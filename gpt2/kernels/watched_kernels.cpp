#include "gpt2/kernels/watched_kernels.hpp"

#include <utility>

#include "common/base/activity.hpp"

namespace rankwise {

namespace {

class WatchedKernels final : public Kernels {
 public:
  explicit WatchedKernels(std::unique_ptr<Kernels> kernels) : kernels_(std::move(kernels)) {}

  void matmul(const Matrix& out, const Matrix& a, const Matrix& b, const SumOrder& order, const Tensor& bias,
              bool accumulate) const override
  {
    const Working working;
    kernels_->matmul(out, a, b, order, bias, accumulate);
  }

  void bias_backward(const Tensor& dbias, const Tensor& dy, const SumOrder& order) const override
  {
    const Working working;
    kernels_->bias_backward(dbias, dy, order);
  }

  void token_forward(const Tensor& y, const Tensor& wte, const Tensor& tokens, Range vocabulary) const override
  {
    const Working working;
    kernels_->token_forward(y, wte, tokens, vocabulary);
  }

  void token_backward(const Tensor& dwte, const Tensor& dx, const Tensor& tokens, Range vocabulary,
                      const SumOrder& order) const override
  {
    const Working working;
    kernels_->token_backward(dwte, dx, tokens, vocabulary, order);
  }

  void position_forward(const Tensor& x, const Tensor& y, const Tensor& wpe, const Rows& rows,
                        const Dropout& dropout) const override
  {
    const Working working;
    kernels_->position_forward(x, y, wpe, rows, dropout);
  }

  void position_backward(const Tensor& dwpe, const Tensor& dx, const Rows& rows) const override
  {
    const Working working;
    kernels_->position_backward(dwpe, dx, rows);
  }

  void norm_forward(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x, const Tensor& weight,
                    const Tensor& bias, double epsilon) const override
  {
    const Working working;
    kernels_->norm_forward(y, mean, rstd, x, weight, bias, epsilon);
  }

  void norm_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                     const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                     const SumOrder& order) const override
  {
    const Working working;
    kernels_->norm_backward(dx, dweight, dbias, dy, x, mean, rstd, weight, order);
  }

  void attention_forward(const Tensor& y, const Tensor& log_sum_exp, const Tensor& qkv, const AttentionShape& shape,
                         const Dropout& dropout) const override
  {
    const Working working;
    kernels_->attention_forward(y, log_sum_exp, qkv, shape, dropout);
  }

  void cached_attention_forward(const Tensor& y, const Tensor& cache, const Tensor& qkv,
                                const AttentionShape& shape, Range tokens) const override
  {
    const Working working;
    kernels_->cached_attention_forward(y, cache, qkv, shape, tokens);
  }

  void attention_backward(const Tensor& dqkv, const Tensor& dy, const Tensor& y, const Tensor& log_sum_exp,
                          const Tensor& qkv, const AttentionShape& shape, const Dropout& dropout) const override
  {
    const Working working;
    kernels_->attention_backward(dqkv, dy, y, log_sum_exp, qkv, shape, dropout);
  }

  void attention_partial(const SoftmaxPartial& partial, const Tensor& qkv, const Tensor& kv,
                         const AttentionShape& shape, const AttentionRuns& runs,
                         const Dropout& dropout) const override
  {
    const Working working;
    kernels_->attention_partial(partial, qkv, kv, shape, runs, dropout);
  }

  void attention_merge(const SoftmaxPartial& into, const SoftmaxPartial& from) const override
  {
    const Working working;
    kernels_->attention_merge(into, from);
  }

  void attention_divide(const Tensor& y, const Tensor& log_sum_exp, const SoftmaxPartial& partial) const override
  {
    const Working working;
    kernels_->attention_divide(y, log_sum_exp, partial);
  }

  void attention_partial_backward(const Tensor& dq, const Tensor& dkv, const Tensor& dy, const Tensor& y,
                                  const Tensor& log_sum_exp, const Tensor& qkv, const Tensor& kv,
                                  const AttentionShape& shape, const AttentionRuns& runs,
                                  const Dropout& dropout) const override
  {
    const Working working;
    kernels_->attention_partial_backward(dq, dkv, dy, y, log_sum_exp, qkv, kv, shape, runs, dropout);
  }

  void copy(const Matrix& to, const Matrix& from) const override
  {
    const Working working;
    kernels_->copy(to, from);
  }

  void bias_gelu_forward(const Tensor& y, const Tensor& x, const Tensor& bias) const override
  {
    const Working working;
    kernels_->bias_gelu_forward(y, x, bias);
  }

  void gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x) const override
  {
    const Working working;
    kernels_->gelu_backward(dx, dy, x);
  }

  void tanh_forward(const Tensor& y, const Tensor& x) const override
  {
    const Working working;
    kernels_->tanh_forward(y, x);
  }

  void tanh_backward(const Tensor& dx, const Tensor& dy, const Tensor& y) const override
  {
    const Working working;
    kernels_->tanh_backward(dx, dy, y);
  }

  void matmul_gelu_forward(const Tensor& y, const Matrix& x, const Matrix& a, const Matrix& b,
                           const SumOrder& order, const Tensor& bias) const override
  {
    const Working working;
    kernels_->matmul_gelu_forward(y, x, a, b, order, bias);
  }

  void matmul_gelu_backward(const Matrix& dx, const Matrix& dy, const Matrix& b, const SumOrder& order,
                            const Tensor& x) const override
  {
    const Working working;
    kernels_->matmul_gelu_backward(dx, dy, b, order, x);
  }

  void residual_forward(const Tensor& out, const Tensor& x, const Tensor& y, const Tensor& bias,
                        const Dropout& dropout) const override
  {
    const Working working;
    kernels_->residual_forward(out, x, y, bias, dropout);
  }

  void dropout(const Tensor& y, const Tensor& x, const Dropout& dropout) const override
  {
    const Working working;
    kernels_->dropout(y, x, dropout);
  }

  void row_maximum(const Tensor& maximum, const Tensor& logits, std::int64_t valid) const override
  {
    const Working working;
    kernels_->row_maximum(maximum, logits, valid);
  }

  void row_sum(const Tensor& sum, const Tensor& target_logit, const Tensor& logits, const Tensor& maximum,
               const Tensor& targets, Range vocabulary, const SumOrder& order) const override
  {
    const Working working;
    kernels_->row_sum(sum, target_logit, logits, maximum, targets, vocabulary, order);
  }

  void row_statistics(const Tensor& maximum, const Tensor& sum, const Tensor& target_logit, const Tensor& logits,
                      const Tensor& targets, Range vocabulary, const SumOrder& order) const override
  {
    const Working working;
    kernels_->row_statistics(maximum, sum, target_logit, logits, targets, vocabulary, order);
  }

  ExactScalar loss_sum(const Tensor& sum, const Tensor& maximum, const Tensor& target_logit,
                       const Tensor& targets) const override
  {
    const Working working;
    return kernels_->loss_sum(sum, maximum, target_logit, targets);
  }

  void loss_backward(const Tensor& logits, const Tensor& maximum, const Tensor& sum, const Tensor& targets,
                     Range vocabulary, double weight) const override
  {
    const Working working;
    kernels_->loss_backward(logits, maximum, sum, targets, vocabulary, weight);
  }

  void route(const Tensor& probabilities, const Tensor& choices, const Tensor& weights,
             const Tensor& logits) const override
  {
    const Working working;
    kernels_->route(probabilities, choices, weights, logits);
  }

  void route_backward(const Tensor& dlogits, const Tensor& dweights, const Tensor& probabilities,
                      const Tensor& choices, const Tensor& weights, const Tensor& pull) const override
  {
    const Working working;
    kernels_->route_backward(dlogits, dweights, probabilities, choices, weights, pull);
  }

  void scatter_rows(const Tensor& rows, const Tensor& x, const Tensor& places) const override
  {
    const Working working;
    kernels_->scatter_rows(rows, x, places);
  }

  void combine_rows(const Tensor& y, const Tensor& rows, const Tensor& places, const Tensor& weights) const override
  {
    const Working working;
    kernels_->combine_rows(y, rows, places, weights);
  }

  void combine_rows_backward(const Tensor& drows, const Tensor& dweights, const Tensor& dy, const Tensor& rows,
                             const Tensor& places, const Tensor& weights) const override
  {
    const Working working;
    kernels_->combine_rows_backward(drows, dweights, dy, rows, places, weights);
  }

  void add(const Tensor& into, const Tensor& from) const override
  {
    const Working working;
    kernels_->add(into, from);
  }

  void maximum(const Tensor& into, const Tensor& from) const override
  {
    const Working working;
    kernels_->maximum(into, from);
  }

  ExactScalar squared_norm(const Tensor& x) const override
  {
    const Working working;
    return kernels_->squared_norm(x);
  }

  std::optional<std::int64_t> first_not_finite(const Tensor& x) const override
  {
    const Working working;
    return kernels_->first_not_finite(x);
  }

  void adamw(const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& gradient, const AdamWStep& step,
             const Tensor& rounded) const override
  {
    const Working working;
    kernels_->adamw(p, m, v, gradient, step, rounded);
  }

  void convert(const Tensor& to, const Tensor& from) const override
  {
    const Working working;
    kernels_->convert(to, from);
  }

 private:
  const std::unique_ptr<Kernels> kernels_;
};

}  // namespace

std::unique_ptr<Kernels> watched(std::unique_ptr<Kernels> kernels)
{
  return std::make_unique<WatchedKernels>(std::move(kernels));
}

}  // namespace rankwise
