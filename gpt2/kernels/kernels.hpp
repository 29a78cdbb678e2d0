#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/base/activity.hpp"
#include "common/base/exact_scalar.hpp"
#include "common/memory/device.hpp"
#include "gpt2/config.hpp"
#include "gpt2/kernels/kernel_arguments.hpp"
#include "gpt2/kernels/sum_order.hpp"
#include "gpt2/random.hpp"

/// @file
/// The kernels of a GPT-2: one declaration for every family.
///
/// Shapes: B sequences, T tokens each, R = B T rows, C channels, H heads, D = C / H, V vocabulary. With n
/// tensor-parallel ranks a layer has H / n heads, F / n inner channels or V / n vocabulary entries; the kernels get
/// these local sizes as arguments, and nothing else changes. Parameters and activations have one type (f32, bf16,
/// f64); statistics have its accumulator_of(): f32, or f64 for f64. Gradients of parameters have either of the two.
/// Sums are computed in accumulator_of() and rounded once, when they are stored. Outputs are the first arguments.
/// Gradients of parameters accumulate (+=). Each call runs on the stream that the kernels were created with.

namespace rankwise {

class Recorder;

/// One family of kernels on one stream of one device.
class KernelFamily {
 public:
  virtual ~KernelFamily() = default;

  /// The recorder to which the layers that compute with these kernels report their results; null, the default, for
  /// none.
  Recorder* recorder() const { return recorder_; }
  /// Sets it; @p recorder outlives the kernels.
  void record_in(Recorder& recorder) { recorder_ = &recorder; }

  /// out = a b + bias, or out += a b: (m, n) from (m, k) and (k, n).
  /// @param out         (m, n), contiguous rows; the type of a and b, or its accumulator_of().
  /// @param order       order of the sum over the k terms.
  /// @param bias        (n) bias added to every row after the sum; may be empty.
  /// @param accumulate  true adds to @p out, false overwrites it.
  virtual void matmul(const Matrix& out, const Matrix& a, const Matrix& b, const SumOrder& order,
                      const Tensor& bias = {}, bool accumulate = false) const = 0;
  /// dbias[j] += sum over rows i of dy[i, j].
  /// @param dbias  (n).
  /// @param dy     (R, n).
  /// @param order  batch(B, T).
  virtual void bias_backward(const Tensor& dbias, const Tensor& dy, const SumOrder& order) const = 0;

  /// y[r] = wte[token of row r - first token of @p vocabulary],
  /// zero for tokens outside: a partial sum of the lookup.
  /// @param y           (R, C).
  /// @param wte         (V of this shard, C).
  /// @param tokens      (R) i32.
  /// @param vocabulary  the vocabulary entries of this shard.
  virtual void token_forward(const Tensor& y, const Tensor& wte, const Tensor& tokens, Range vocabulary) const = 0;
  /// dwte[v] += sum over the rows r of token v of dx[r].
  virtual void token_backward(const Tensor& dwte, const Tensor& dx, const Tensor& tokens, Range vocabulary,
                              const SumOrder& order) const = 0;
  /// x[r] = dropout(y[r] + wpe[token number of row r]).
  /// @param x        (R, C); may be y.
  /// @param y        (R, C).
  /// @param wpe      (context, C).
  /// @param rows     sequences and tokens of the rows.
  /// @param dropout  mask of the embedding's dropout.
  virtual void position_forward(const Tensor& x, const Tensor& y, const Tensor& wpe, const Rows& rows,
                                const Dropout& dropout) const = 0;
  /// dwpe[t] += sum over sequences b of dx[b, t].
  virtual void position_backward(const Tensor& dwpe, const Tensor& dx, const Rows& rows) const = 0;

  /// y = (x - mean) rstd weight + bias, row by row, with rstd = 1 / sqrt(variance + epsilon).
  /// @param y             (R, C).
  /// @param mean          (R).
  /// @param rstd          (R).
  /// @param x             (R, C).
  /// @param weight, bias  (C).
  /// @source  Ba, Kiros and Hinton 2016.
  virtual void norm_forward(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                            const Tensor& weight, const Tensor& bias, double epsilon = norm_epsilon) const = 0;
  /// dx += the gradient of the rows, dweight[c] += sum dy xhat, dbias[c] += sum dy, with xhat = (x - mean) rstd.
  /// @param dx               (R, C), accumulates: it already holds the gradient of the residual connection.
  /// @param dweight, dbias   (C).
  /// @param dy               (R, C).
  /// @param x, mean, rstd    input and statistics of norm_forward().
  /// @param weight           (C).
  /// @param order            batch(B, T).
  virtual void norm_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                             const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                             const SumOrder& order) const = 0;

  /// y = softmax(q k' / sqrt(D)) v, head by head, over the keys that the mask allows and that are no padding.
  /// @param y               (R, D heads).
  /// @param log_sum_exp     (B, heads, T), log of each row's sum of exponentials; the backward pass needs no other
  ///                        statistic.
  /// @param qkv             (R, 3 D heads): q, k, v, each head by head.
  /// @param shape           sizes, mask and lengths.
  /// @param dropout         mask of the attention weights.
  /// @source  Vaswani et al. 2017, section 3.2.
  virtual void attention_forward(const Tensor& y, const Tensor& log_sum_exp, const Tensor& qkv,
                                 const AttentionShape& shape, const Dropout& dropout) const = 0;
  /// attention_forward() for the next tokens of one sequence, with the keys and values of the previous tokens in
  /// @p cache; those of the new tokens are appended. Causal, without padding (lengths are ignored), without
  /// dropout, and without a backward pass.
  /// @param y       (R, D heads), R = tokens.count.
  /// @param cache   (T >= tokens.end(), 2 D heads): k, v of the sequence's tokens, head by head; sums have T's leaves.
  /// @param qkv     (R, 3 D heads).
  /// @param shape   shape of these rows: B = 1, T = R.
  /// @param tokens  positions of the new tokens in the sequence.
  /// @source  Shazeer 2019, section 2.4: decoding one token after the other with keys and values kept.
  virtual void cached_attention_forward(const Tensor& y, const Tensor& cache, const Tensor& qkv,
                                        const AttentionShape& shape, Range tokens) const = 0;
  /// dqkv = the gradient of attention_forward(), zero for keys and values of padding; overwrites, because no other
  /// gradient is added to it.
  /// @param dqkv            (R, 3 D heads).
  /// @param dy              (R, D heads).
  /// @param y, log_sum_exp  outputs of attention_forward().
  /// @param qkv             its input.
  /// @source  Dao et al. 2022 (FlashAttention), appendix B: the row's dot product dy y in place of a sum over keys.
  virtual void attention_backward(const Tensor& dqkv, const Tensor& dy, const Tensor& y, const Tensor& log_sum_exp,
                                  const Tensor& qkv, const AttentionShape& shape, const Dropout& dropout) const = 0;

  /// attention_forward() of a run of queries and a run of keys and values, without its last step, the division. With
  /// shape.T the tokens of the whole sequences, mask and dropout are those of the positions that @p runs names. The
  /// reference kernels add the leaves of the sequence that the keys make up in the tree of the whole, so the partials
  /// of aligned runs merge into the bits of attention_forward().
  /// @param partial  overwritten; a query that sees no key of the run has a sum of 0.
  /// @param qkv      (B queries, 3 D heads) of the queries' tokens; its keys and values are not used.
  /// @param kv       (B keys, 2 D heads): k, v, each head by head.
  /// @param shape    sizes of the whole layer.
  /// @param runs     positions of the queries and of the keys.
  /// @param dropout  mask of the attention weights; its rows are the queries.
  /// @source  Liu et al. 2023 (ring attention), section 3.
  virtual void attention_partial(const SoftmaxPartial& partial, const Tensor& qkv, const Tensor& kv,
                                 const AttentionShape& shape, const AttentionRuns& runs,
                                 const Dropout& dropout) const = 0;
  /// into = the soft-max over the keys of both: M = max(m, m'), sum = sum exp(m - M) + sum' exp(m' - M), output
  /// likewise. A side without keys changes nothing.
  /// @source  Milakov and Gimelshein 2018, section 3, equation 4.
  virtual void attention_merge(const SoftmaxPartial& into, const SoftmaxPartial& from) const = 0;
  /// y = output / sum and log_sum_exp = maximum + log(sum).
  /// @param y            (B queries, D heads).
  /// @param log_sum_exp  (B, heads, queries).
  virtual void attention_divide(const Tensor& y, const Tensor& log_sum_exp,
                                const SoftmaxPartial& partial) const = 0;
  /// The part of attention_backward() that a run of queries and a run of keys contribute, as sums that are not rounded
  /// yet. Overwrites.
  /// @param dq               (B queries, D heads) in the accumulator type: summed over the keys of the run.
  /// @param dkv              (B keys, 2 D heads) in the accumulator type: summed over the queries of the run.
  /// @param dy               (B queries, D heads).
  /// @param y, log_sum_exp   of attention_divide(): over all keys, not only those of the run.
  /// @param qkv, kv, shape, runs, dropout  as for attention_partial().
  virtual void attention_partial_backward(const Tensor& dq, const Tensor& dkv, const Tensor& dy, const Tensor& y,
                                          const Tensor& log_sum_exp, const Tensor& qkv, const Tensor& kv,
                                          const AttentionShape& shape, const AttentionRuns& runs,
                                          const Dropout& dropout) const = 0;
  /// to = from, element by element, rounded where @p to has fewer bits: gathers columns, or puts them in place.
  /// @param to, from  of the same sizes, with any strides.
  virtual void copy(const Matrix& to, const Matrix& from) const = 0;

  /// x += bias, then y = gelu(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
  /// @param y     (R, n).
  /// @param x     (R, n), in: without bias; out: with bias, as the backward pass needs it.
  /// @param bias  (n).
  /// @source  Hendrycks and Gimpel 2016, section 2.
  virtual void bias_gelu_forward(const Tensor& y, const Tensor& x, const Tensor& bias) const = 0;
  /// dx = dy gelu'(x).
  /// @param dx  (R, n); may be dy.
  /// @param dy  (R, n).
  /// @param x   (R, n), bias included.
  virtual void gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x) const = 0;
  /// x = a b + bias, y = gelu(x): matmul() and bias_gelu_forward() in one call, for libraries that fuse the two.
  /// @param y     (m, n).
  /// @param x     (m, n), contiguous.
  /// @param bias  (n).
  virtual void matmul_gelu_forward(const Tensor& y, const Matrix& x, const Matrix& a, const Matrix& b,
                                   const SumOrder& order, const Tensor& bias) const
  {
    matmul(x, a, b, order);
    bias_gelu_forward(y, x.data, bias);
  }
  /// dx = (dy b) gelu'(x): matmul() and gelu_backward() in one call.
  /// @param dx  (m, n), contiguous.
  /// @param dy  (m, k).
  /// @param b   (k, n).
  /// @param x   (m, n), bias included.
  virtual void matmul_gelu_backward(const Matrix& dx, const Matrix& dy, const Matrix& b, const SumOrder& order,
                                    const Tensor& x) const
  {
    matmul(dx, dy, b, order);
    gelu_backward(dx.data, dx.data, x);
  }

  /// y = tanh(x), in the accumulator type.
  /// @param y  (n); may be x.
  /// @param x  (n).
  virtual void tanh_forward(const Tensor& y, const Tensor& x) const = 0;
  /// dx = dy (1 - y^2).
  /// @param dx  (n); may be dy.
  /// @param dy  (n).
  /// @param y   (n), output of tanh_forward().
  virtual void tanh_backward(const Tensor& dx, const Tensor& dy, const Tensor& y) const = 0;

  /// out = x + dropout(y + bias): adds a branch's output to the residual stream.
  /// @param out   (R, C).
  /// @param x, y  (R, C).
  /// @param bias  (C).
  virtual void residual_forward(const Tensor& out, const Tensor& x, const Tensor& y, const Tensor& bias,
                                const Dropout& dropout) const = 0;
  /// y = dropout(x). It is its own backward pass: with dy as x, y is the gradient dx.
  /// @param y  (R, C); may be x.
  /// @param x  (R, C).
  virtual void dropout(const Tensor& y, const Tensor& x, const Dropout& dropout) const = 0;

  /// maximum[r] = the largest logit of row r, exact in any order; -infinity when this shard has only padding.
  /// @param maximum  (R).
  /// @param logits   (R, stored V).
  /// @param valid    number of columns that are not padding.
  virtual void row_maximum(const Tensor& maximum, const Tensor& logits, std::int64_t valid) const = 0;
  /// sum[r] = sum of exp(logit - maximum[r]); target_logit[r]
  /// = the target's logit, zero when it is in another shard.
  /// @param sum, target_logit  (R).
  /// @param logits             (R, stored V).
  /// @param maximum            (R).
  /// @param targets            (R) i32, -1 where nothing is counted.
  /// @param vocabulary         the vocabulary entries of this shard, without padding.
  /// @param order              split(stored V, leaves).
  virtual void row_sum(const Tensor& sum, const Tensor& target_logit, const Tensor& logits, const Tensor& maximum,
                       const Tensor& targets, Range vocabulary, const SumOrder& order) const = 0;
  /// row_maximum() and row_sum() in one call, for a vocabulary that is not sharded.
  virtual void row_statistics(const Tensor& maximum, const Tensor& sum, const Tensor& target_logit,
                              const Tensor& logits, const Tensor& targets, Range vocabulary,
                              const SumOrder& order) const
  {
    row_maximum(maximum, logits, vocabulary.count);
    row_sum(sum, target_logit, logits, maximum, targets, vocabulary, order);
  }
  /// The sum over counted rows of the cross-entropy log(sum) + maximum - target_logit, in nats.
  virtual ExactScalar loss_sum(const Tensor& sum, const Tensor& maximum, const Tensor& target_logit,
                               const Tensor& targets) const = 0;
  /// Overwrites logits with the gradient of @p weight times the *sum* of losses: weight (exp(logit - maximum) / sum -
  /// [column is the target]), zero in rows that are not counted and in padding.
  virtual void loss_backward(const Tensor& logits, const Tensor& maximum, const Tensor& sum, const Tensor& targets,
                             Range vocabulary, double weight = 1) const = 0;

  /// The router of a block with experts: probabilities[r] = softmax(logits[r]); choices[r] = the k most probable
  /// experts, the most probable first, of equal ones the one with the smaller number; weights[r, j] = the probability
  /// of choice j, for k > 1 divided by the sum over the k choices.
  /// @param probabilities  (R, E) in the accumulator type.
  /// @param choices        (R, k) i32.
  /// @param weights        (R, k) in the accumulator type.
  /// @param logits         (R, E) in the accumulator type.
  /// @source  Fedus et al. 2022 (Switch Transformer), equation 1, for k = 1; Lepikhin et al. 2021 (GShard), section 2.2.
  virtual void route(const Tensor& probabilities, const Tensor& choices, const Tensor& weights,
                     const Tensor& logits) const = 0;
  /// dlogits = the gradient of route(), and of @p pull times the probabilities.
  /// @param dlogits                          (R, E) in the type of the activations.
  /// @param dweights                         (R, k) in the accumulator type.
  /// @param probabilities, choices, weights  outputs of route().
  /// @param pull  (B, E) in the accumulator type: gradient of the auxiliary loss with respect to each probability of a
  ///              sequence's tokens.
  virtual void route_backward(const Tensor& dlogits, const Tensor& dweights, const Tensor& probabilities,
                              const Tensor& choices, const Tensor& weights, const Tensor& pull) const = 0;
  /// rows[places[r, j]] = x[r], for all choices j that have a place.
  /// @param rows    (at least as many rows as there are places, C).
  /// @param x       (R, C).
  /// @param places  (R, k) i32: row of choice j of token r; -1: none.
  virtual void scatter_rows(const Tensor& rows, const Tensor& x, const Tensor& places) const = 0;
  /// y[r] = sum over j of weights[r, j] rows[places[r, j]], in the order of the choices.
  /// @param y        (R, C).
  /// @param rows     as for scatter_rows().
  /// @param weights  (R, k) in the accumulator type; empty: all 1.
  virtual void combine_rows(const Tensor& y, const Tensor& rows, const Tensor& places,
                            const Tensor& weights) const = 0;
  /// drows[places[r, j]] = weights[r, j] dy[r]; dweights[r, j] = dy[r] . rows[places[r, j]], zero without a place.
  virtual void combine_rows_backward(const Tensor& drows, const Tensor& dweights, const Tensor& dy,
                                     const Tensor& rows, const Tensor& places, const Tensor& weights) const = 0;

  /// into += from, element by element.
  virtual void add(const Tensor& into, const Tensor& from) const = 0;
  /// into = the larger of into and from, element by element.
  virtual void maximum(const Tensor& into, const Tensor& from) const = 0;
  /// The sum of the squares of all elements.
  virtual ExactScalar squared_norm(const Tensor& x) const = 0;
  /// The index of the first element that is NaN or infinite, if there is one.
  virtual std::optional<std::int64_t> first_not_finite(const Tensor& x) const = 0;
  /// One AdamW update: g = scale gradient; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
  /// p = p (1 - lr decay) - lr mhat / (sqrt(vhat) + epsilon).
  /// @param p, m, v   (n) f32.
  /// @param gradient  (n) f32 or bf16.
  /// @param rounded   (n) bf16, set to p rounded to nearest; may be empty.
  /// @source  Loshchilov and Hutter 2019, algorithm 2; Micikevicius et al. 2018, section 3.1, for the rounded copy.
  virtual void adamw(const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& gradient,
                     const AdamWStep& step, const Tensor& rounded = {}) const = 0;
  /// to = from, rounded to nearest where @p to has fewer bits.
  /// @param to    (n) f32 or bf16.
  /// @param from  (n) f32 or bf16.
  virtual void convert(const Tensor& to, const Tensor& from) const = 0;

 private:
  Recorder* recorder_ = nullptr;
};

/// A family as layers call it: `kernels->matmul(...)`. A call counts as work while it lasts, and as progress when it
/// returns (common/base/activity.hpp). Copies share the family.
/// @source  Stroustrup 2000, "Wrapping C++ Member Function Calls".
class Kernels {
 public:
  /// @param family  a unique_ptr or shared_ptr to the kernels.
  template <std::convertible_to<std::shared_ptr<KernelFamily>> Pointer>
  Kernels(Pointer family) : family_(std::move(family))
  {
  }

  /// One call, to the end of the expression that makes it: so none of these waits for a message.
  struct Call {
    KernelFamily* family;  ///< whose kernel is called
    Working working{};     ///< until it has returned

    /// Calls a kernel of the family.
    KernelFamily* operator->() const { return family; }
  };
  /// Begins a call.
  Call operator->() const { return {family_.get()}; }

 private:
  std::shared_ptr<KernelFamily> family_;
};

/// The reference kernels: plain loops, the specification of every other family.
Kernels make_reference_kernels();

/// The exact kernels of the CPU: the bits of the reference, in tiles of outputs that vector registers compute side by side.
Kernels make_exact_kernels();

/// The fast kernels of the CPU, for f32 and bf16: matrix products of a library, blocked attention, OpenMP.
Kernels make_cpu_kernels();

/// Kernels that compute nothing, for a rehearsal: losses and norms are 0, and a router chooses each expert equally often.
Kernels make_rehearsed_kernels();

/// Origin of the matrix products of @p type in make_cpu_kernels(), for reports: a library and its version, or code
/// of our own.
std::string cpu_products(DType type);

/// The fast kernels of a GPU, for f32 and bf16: cuBLAS, tiled attention, deterministic sums.
/// @param memory  memory of a GPU; the kernels allocate gpu_workspace_bytes of it as workspace.
/// @param stream  stream of the same GPU on which the kernels run; outlives them. Kernels that return a number wait
///                for it.
/// @throws Error  in a build without CUDA.
Kernels make_cuda_kernels(const DeviceMemory& memory, Stream& stream);
/// make_cuda_kernels() with f32 matrix products in TF32: factors are rounded to 10 bits, sums are computed in f32.
Kernels make_cuda_tf32_kernels(const DeviceMemory& memory, Stream& stream);

/// Origin of the matrix products in make_cuda_kernels(), for reports.
/// @throws Error  in a build without CUDA.
std::string cuda_products();

/// The reference kernels on a GPU, for f32 and bf16: one thread per output, every sum in the order of its SumOrder,
/// without contraction to fused multiply-adds. Otherwise as make_cuda_kernels().
Kernels make_cuda_reference_kernels(const DeviceMemory& memory, Stream& stream);

/// Scratch memory of cuBLAS.
constexpr std::int64_t cublas_workspace_bytes = 32 << 20;
/// Scratch memory of the kernels of a GPU, for partial sums.
constexpr std::int64_t gpu_scratch_bytes = 4 << 20;
/// GPU memory that each family of kernels allocates.
constexpr std::int64_t gpu_workspace_bytes = cublas_workspace_bytes + gpu_scratch_bytes;

/// Bytes of workspace that the kernels of a device allocate.
constexpr std::int64_t kernel_bytes(DeviceKind device)
{
  return device == DeviceKind::cuda ? gpu_workspace_bytes : 0;
}

}  // namespace rankwise
