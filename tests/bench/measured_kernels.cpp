#include "tests/bench/measured_kernels.hpp"

#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>

#include "common/program/time_ledger.hpp"

namespace rankwise {

namespace {

/// The bytes of all of them.
template <class... Tensors>
double bytes(const Tensors&... tensors)
{
  return static_cast<double>((tensors.bytes() + ...));
}

double bytes(const Matrix& matrix)
{
  return static_cast<double>(matrix.rows * matrix.columns * bytes_of(matrix.data.type()));
}

double elements(const Tensor& tensor)
{
  return static_cast<double>(tensor.elements());
}

/// D times the pairs of a query and a key that the mask lets it see, over all sequences and heads.
double visible_products(const AttentionShape& shape, const AttentionRuns& runs)
{
  std::int64_t pairs = 0;
  for (std::int64_t t = runs.queries.first; t < runs.queries.end(); ++t)
    pairs += intersect(runs.keys, {0, shape.mask.visible_keys(t, shape.T)}).count;
  return static_cast<double>(shape.B * shape.heads.count * shape.D * pairs);
}

double visible_products(const AttentionShape& shape)
{
  return visible_products(shape, {{0, shape.T}, {0, shape.T}});
}

/// The bytes of as many rows of an embedding as there are tokens, at most all of them.
double touched_bytes(const Tensor& embedding, std::int64_t tokens)
{
  const std::int64_t columns = embedding.extent(1), touched = std::min(embedding.extent(0), tokens);
  return static_cast<double>(touched * columns * bytes_of(embedding.type()));
}

class MeasuredKernels final : public KernelFamily {
 public:
  MeasuredKernels(Kernels kernels, MeasuredGroups& into, Stream* stream)
      : kernels_(std::move(kernels)), into_(into), stream_(stream)
  {
  }

  // ---- matrix products and attention

  void matmul(const Matrix& out, const Matrix& a, const Matrix& b, const SumOrder& order, const Tensor& bias,
              bool accumulate) const override
  {
    const auto outputs = static_cast<double>(out.rows * out.columns), k = static_cast<double>(a.columns);
    const double added = (bias.empty() ? 0 : outputs) + (accumulate ? outputs : 0);
    const double out_bytes = (accumulate ? 2 : 1) * bytes(out);
    measure(KernelGroup::matmul, {2 * outputs * k + added, bytes(a) + bytes(b) + bytes(bias) + out_bytes},
            [&] { kernels_->matmul(out, a, b, order, bias, accumulate); });
  }

  void attention_forward(const Tensor& y, const Tensor& log_sum_exp, const Tensor& qkv, const AttentionShape& shape,
                         const Dropout& dropout) const override
  {
    measure(KernelGroup::attention, {4 * visible_products(shape), bytes(y, log_sum_exp, qkv)},
            [&] { kernels_->attention_forward(y, log_sum_exp, qkv, shape, dropout); });
  }

  void cached_attention_forward(const Tensor& y, const Tensor& cache, const Tensor& qkv,
                                const AttentionShape& shape, Range tokens) const override
  {
    const std::int64_t pairs = tokens.count * (tokens.first + 1 + tokens.end()) / 2;
    const auto products = static_cast<double>(pairs * shape.heads.count * shape.D);
    const std::int64_t cached = tokens.end() * cache.extent(1) * bytes_of(cache.type());
    measure(KernelGroup::attention, {4 * products, bytes(y, qkv) + static_cast<double>(cached)},
            [&] { kernels_->cached_attention_forward(y, cache, qkv, shape, tokens); });
  }

  void attention_backward(const Tensor& dqkv, const Tensor& dy, const Tensor& y, const Tensor& log_sum_exp,
                          const Tensor& qkv, const AttentionShape& shape, const Dropout& dropout) const override
  {
    measure(KernelGroup::attention, {10 * visible_products(shape), bytes(dqkv, dy, y, log_sum_exp, qkv)},
            [&] { kernels_->attention_backward(dqkv, dy, y, log_sum_exp, qkv, shape, dropout); });
  }

  void attention_partial(const SoftmaxPartial& partial, const Tensor& qkv, const Tensor& kv,
                         const AttentionShape& shape, const AttentionRuns& runs,
                         const Dropout& dropout) const override
  {
    measure(KernelGroup::attention,
            {4 * visible_products(shape, runs), bytes(partial.maximum, partial.sum, partial.output, qkv, kv)},
            [&] { kernels_->attention_partial(partial, qkv, kv, shape, runs, dropout); });
  }

  void attention_merge(const SoftmaxPartial& into, const SoftmaxPartial& from) const override
  {
    measure(KernelGroup::attention,
            {2 * static_cast<double>(into.output.elements()),
             2 * bytes(into.maximum, into.sum, into.output) + bytes(from.maximum, from.sum, from.output)},
            [&] { kernels_->attention_merge(into, from); });
  }

  void attention_divide(const Tensor& y, const Tensor& log_sum_exp, const SoftmaxPartial& partial) const override
  {
    measure(KernelGroup::attention,
            {static_cast<double>(y.elements()),
             bytes(y, log_sum_exp, partial.maximum) + bytes(partial.sum, partial.output)},
            [&] { kernels_->attention_divide(y, log_sum_exp, partial); });
  }

  void attention_partial_backward(const Tensor& dq, const Tensor& dkv, const Tensor& dy, const Tensor& y,
                                  const Tensor& log_sum_exp, const Tensor& qkv, const Tensor& kv,
                                  const AttentionShape& shape, const AttentionRuns& runs,
                                  const Dropout& dropout) const override
  {
    measure(KernelGroup::attention,
            {10 * visible_products(shape, runs), bytes(dq, dkv, dy, y, log_sum_exp) + bytes(qkv, kv)}, [&] {
              kernels_->attention_partial_backward(dq, dkv, dy, y, log_sum_exp, qkv, kv, shape, runs, dropout);
            });
  }

  void copy(const Matrix& to, const Matrix& from) const override
  {
    measure(KernelGroup::attention, {0, bytes(to) + bytes(from)}, [&] { kernels_->copy(to, from); });
  }

  // ---- norm, GELU, residual stream

  void norm_forward(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x, const Tensor& weight,
                    const Tensor& bias, double epsilon) const override
  {
    measure(KernelGroup::norm, {8 * elements(x), bytes(y, mean, rstd, x, weight, bias)},
            [&] { kernels_->norm_forward(y, mean, rstd, x, weight, bias, epsilon); });
  }

  void norm_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                     const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                     const SumOrder& order) const override
  {
    measure(KernelGroup::norm, {14 * elements(x), 2 * bytes(dx, dweight, dbias) + bytes(dy, x, mean, rstd, weight)},
            [&] { kernels_->norm_backward(dx, dweight, dbias, dy, x, mean, rstd, weight, order); });
  }

  void bias_gelu_forward(const Tensor& y, const Tensor& x, const Tensor& bias) const override
  {
    measure(KernelGroup::gelu, {10 * elements(x), 2 * bytes(x) + bytes(y, bias)},
            [&] { kernels_->bias_gelu_forward(y, x, bias); });
  }

  void gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x) const override
  {
    measure(KernelGroup::gelu, {16 * elements(x), bytes(dx, dy, x)}, [&] { kernels_->gelu_backward(dx, dy, x); });
  }

  void tanh_forward(const Tensor& y, const Tensor& x) const override
  {
    measure(KernelGroup::gelu, {elements(x), bytes(y, x)}, [&] { kernels_->tanh_forward(y, x); });
  }

  void tanh_backward(const Tensor& dx, const Tensor& dy, const Tensor& y) const override
  {
    measure(KernelGroup::gelu, {3 * elements(y), bytes(dx, dy, y)}, [&] { kernels_->tanh_backward(dx, dy, y); });
  }

  void matmul_gelu_forward(const Tensor& y, const Matrix& x, const Matrix& a, const Matrix& b,
                           const SumOrder& order, const Tensor& bias) const override
  {
    if (stream_ == nullptr) return KernelFamily::matmul_gelu_forward(y, x, a, b, order, bias);
    const double n = elements(y), k = static_cast<double>(a.columns);
    measure(KernelGroup::matmul_gelu, {2 * n * k + 10 * n, bytes(a) + bytes(b) + bytes(x) + bytes(y, bias)},
            [&] { kernels_->matmul_gelu_forward(y, x, a, b, order, bias); });
  }

  void matmul_gelu_backward(const Matrix& dx, const Matrix& dy, const Matrix& b, const SumOrder& order,
                            const Tensor& x) const override
  {
    if (stream_ == nullptr) return KernelFamily::matmul_gelu_backward(dx, dy, b, order, x);
    const double n = elements(x), k = static_cast<double>(dy.columns);
    measure(KernelGroup::matmul_gelu, {2 * n * k + 16 * n, bytes(dx) + bytes(dy) + bytes(b) + bytes(x)},
            [&] { kernels_->matmul_gelu_backward(dx, dy, b, order, x); });
  }

  void residual_forward(const Tensor& out, const Tensor& x, const Tensor& y, const Tensor& bias,
                        const Dropout& dropout) const override
  {
    measure(KernelGroup::residual, {2 * elements(x), bytes(out, x, y, bias)},
            [&] { kernels_->residual_forward(out, x, y, bias, dropout); });
  }

  void dropout(const Tensor& y, const Tensor& x, const Dropout& dropout) const override
  {
    measure(KernelGroup::residual, {0, bytes(y, x)}, [&] { kernels_->dropout(y, x, dropout); });
  }

  void bias_backward(const Tensor& dbias, const Tensor& dy, const SumOrder& order) const override
  {
    measure(KernelGroup::residual, {elements(dy), 2 * bytes(dbias) + bytes(dy)},
            [&] { kernels_->bias_backward(dbias, dy, order); });
  }

  // ---- embedding

  void token_forward(const Tensor& y, const Tensor& wte, const Tensor& tokens, Range vocabulary) const override
  {
    measure(KernelGroup::embedding, {0, bytes(y, tokens) + touched_bytes(wte, tokens.elements())},
            [&] { kernels_->token_forward(y, wte, tokens, vocabulary); });
  }

  void token_backward(const Tensor& dwte, const Tensor& dx, const Tensor& tokens, Range vocabulary,
                      const SumOrder& order) const override
  {
    measure(KernelGroup::embedding, {elements(dx), bytes(dx, tokens) + 2 * touched_bytes(dwte, tokens.elements())},
            [&] { kernels_->token_backward(dwte, dx, tokens, vocabulary, order); });
  }

  void position_forward(const Tensor& x, const Tensor& y, const Tensor& wpe, const Rows& rows,
                        const Dropout& dropout) const override
  {
    measure(KernelGroup::embedding, {elements(x), bytes(x, y) + touched_bytes(wpe, rows.tokens.count)},
            [&] { kernels_->position_forward(x, y, wpe, rows, dropout); });
  }

  void position_backward(const Tensor& dwpe, const Tensor& dx, const Rows& rows) const override
  {
    measure(KernelGroup::embedding, {elements(dx), bytes(dx) + 2 * touched_bytes(dwpe, rows.tokens.count)},
            [&] { kernels_->position_backward(dwpe, dx, rows); });
  }

  // ---- loss

  void row_maximum(const Tensor& maximum, const Tensor& logits, std::int64_t valid) const override
  {
    measure(KernelGroup::loss, {elements(logits), bytes(maximum, logits)},
            [&] { kernels_->row_maximum(maximum, logits, valid); });
  }

  void row_sum(const Tensor& sum, const Tensor& target_logit, const Tensor& logits, const Tensor& maximum,
               const Tensor& targets, Range vocabulary, const SumOrder& order) const override
  {
    measure(KernelGroup::loss, {3 * elements(logits), bytes(sum, target_logit, logits, maximum, targets)},
            [&] { kernels_->row_sum(sum, target_logit, logits, maximum, targets, vocabulary, order); });
  }

  void row_statistics(const Tensor& maximum, const Tensor& sum, const Tensor& target_logit, const Tensor& logits,
                      const Tensor& targets, Range vocabulary, const SumOrder& order) const override
  {
    measure(KernelGroup::loss, {4 * elements(logits), bytes(maximum, sum, target_logit, logits, targets)},
            [&] { kernels_->row_statistics(maximum, sum, target_logit, logits, targets, vocabulary, order); });
  }

  ExactScalar loss_sum(const Tensor& sum, const Tensor& maximum, const Tensor& target_logit,
                       const Tensor& targets) const override
  {
    return measure(KernelGroup::loss, {4 * elements(sum), bytes(sum, maximum, target_logit, targets)},
                   [&] { return kernels_->loss_sum(sum, maximum, target_logit, targets); });
  }

  void loss_backward(const Tensor& logits, const Tensor& maximum, const Tensor& sum, const Tensor& targets,
                     Range vocabulary, double weight) const override
  {
    measure(KernelGroup::loss, {3 * elements(logits), 2 * bytes(logits) + bytes(maximum, sum, targets)},
            [&] { kernels_->loss_backward(logits, maximum, sum, targets, vocabulary, weight); });
  }

  // ---- gradients and optimizer

  void route(const Tensor& probabilities, const Tensor& choices, const Tensor& weights,
             const Tensor& logits) const override
  {
    measure(KernelGroup::embedding, {0, bytes(probabilities, choices, weights, logits)},
            [&] { kernels_->route(probabilities, choices, weights, logits); });
  }

  void route_backward(const Tensor& dlogits, const Tensor& dweights, const Tensor& probabilities,
                      const Tensor& choices, const Tensor& weights, const Tensor& pull) const override
  {
    measure(KernelGroup::embedding, {0, bytes(dlogits, dweights, probabilities, choices, weights, pull)},
            [&] { kernels_->route_backward(dlogits, dweights, probabilities, choices, weights, pull); });
  }

  void scatter_rows(const Tensor& rows, const Tensor& x, const Tensor& places) const override
  {
    measure(KernelGroup::embedding, {0, bytes(rows, x, places)}, [&] { kernels_->scatter_rows(rows, x, places); });
  }

  void combine_rows(const Tensor& y, const Tensor& rows, const Tensor& places, const Tensor& weights) const override
  {
    measure(KernelGroup::embedding, {0, bytes(y, rows, places, weights)},
            [&] { kernels_->combine_rows(y, rows, places, weights); });
  }

  void combine_rows_backward(const Tensor& drows, const Tensor& dweights, const Tensor& dy, const Tensor& rows,
                             const Tensor& places, const Tensor& weights) const override
  {
    measure(KernelGroup::embedding, {0, bytes(drows, dweights, dy, rows, places, weights)},
            [&] { kernels_->combine_rows_backward(drows, dweights, dy, rows, places, weights); });
  }

  void add(const Tensor& into, const Tensor& from) const override
  {
    measure(KernelGroup::gradient_sum, {elements(into), 2 * bytes(into) + bytes(from)},
            [&] { kernels_->add(into, from); });
  }

  void maximum(const Tensor& into, const Tensor& from) const override
  {
    measure(KernelGroup::loss, {elements(into), 2 * bytes(into) + bytes(from)},
            [&] { kernels_->maximum(into, from); });
  }

  ExactScalar squared_norm(const Tensor& x) const override
  {
    return measure(KernelGroup::gradient_norm, {2 * elements(x), bytes(x)},
                   [&] { return kernels_->squared_norm(x); });
  }

  std::optional<std::int64_t> first_not_finite(const Tensor& x) const override
  {
    return measure(KernelGroup::gradient_norm, {elements(x), bytes(x)},
                   [&] { return kernels_->first_not_finite(x); });
  }

  void adamw(const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& gradient, const AdamWStep& step,
             const Tensor& rounded) const override
  {
    measure(KernelGroup::optimizer, {16 * elements(p), 2 * bytes(p, m, v) + bytes(gradient, rounded)},
            [&] { kernels_->adamw(p, m, v, gradient, step, rounded); });
  }

  void convert(const Tensor& to, const Tensor& from) const override
  {
    measure(KernelGroup::optimizer, {elements(to), bytes(to, from)}, [&] { kernels_->convert(to, from); });
  }

 private:
  /// Adds the call to its group when what it asks for is done.
  template <class Call>
  std::invoke_result_t<Call> measure(KernelGroup group, const MinimalWork& work, const Call& call) const
  {
    if (stream_ != nullptr) stream_->synchronise();
    const AllocationCount before = allocations();
    const Stopwatch clock;
    const auto finish = [&] {
      const double queued_s = clock.seconds();
      if (stream_ != nullptr) stream_->synchronise();
      const double seconds = stream_ != nullptr ? clock.seconds() : queued_s;
      into_.total(group).add(seconds, queued_s, work, allocations() - before);
    };
    if constexpr (std::is_void_v<std::invoke_result_t<Call>>) {
      call();
      finish();
    } else {
      const auto result = call();
      finish();
      return result;
    }
  }

  Kernels kernels_;
  MeasuredGroups& into_;
  Stream* stream_;
};

}  // namespace

std::string_view name_of(KernelGroup group)
{
  constexpr std::array<std::string_view, kernel_group_count> names{
      "matmul",    "matmul + GELU",   "attention",    "norm",          "GELU", "loss",
      "embedding", "residual + bias", "gradient sum", "gradient norm", "AdamW"};
  return names[static_cast<std::size_t>(group)];
}

void GroupTotal::add(double call_seconds, double call_queued_s, const MinimalWork& call_work,
                     const AllocationCount& call_allocations)
{
  ++calls;
  seconds += call_seconds;
  queued_s += call_queued_s;
  work.flops += call_work.flops;
  work.bytes += call_work.bytes;
  allocations += call_allocations;
}

Kernels make_measured_kernels(Kernels kernels, MeasuredGroups& into, Stream* stream)
{
  return std::make_unique<MeasuredKernels>(std::move(kernels), into, stream);
}

}  // namespace rankwise
