#include <algorithm>
#include <cmath>
#include <limits>
#include <omp.h>

#include "gpt2/kernels/cpu/cpu.hpp"
#include "gpt2/kernels/cpu/gemm.hpp"
#include "gpt2/kernels/cpu/vector_math.hpp"

// The scores of a head are a T x T matrix. It is computed in blocks of query_block x key_block that stay in cache, and
// never stored: the forward pass carries the maximum and the sum of each row's soft-max from block to block (Milakov and
// Gimelshein 2018; Dao et al. 2022, algorithm 1), the backward pass computes each block again (there, algorithm 4).
// Blocks that the mask hides are left out.

namespace rankwise {

namespace {

constexpr std::int64_t query_block = 64, key_block = 128;

/// A matrix in which one head of one sequence stands: its queries, keys, values, outputs, or gradients.
struct HeadRows {
  float* first;                  ///< channel 0 of the first token
  std::int64_t stride;           ///< from one token to the next
  std::int64_t first_token = 0;  ///< its number in the sequence

  float* row(std::int64_t t) const { return first + (t - first_token) * stride; }
  GemmOperand from(std::int64_t t) const { return {row(t), stride}; }
  GemmOperand transposed_from(std::int64_t t) const { return {row(t), stride, true}; }
};

/// One of the three sections of (R, 3 D heads): 0 queries, 1 keys, 2 values.
HeadRows section(const Tensor& qkv, const AttentionShape& shape, std::int64_t b, std::int64_t h, int which)
{
  const std::int64_t width = shape.heads.count * shape.D;
  return {qkv.data<float>() + b * shape.T * 3 * width + which * width + h * shape.D, 3 * width};
}

/// The head in (R, D heads).
HeadRows outputs(const Tensor& y, const AttentionShape& shape, std::int64_t b, std::int64_t h)
{
  const std::int64_t width = shape.heads.count * shape.D;
  return {y.data<float>() + b * shape.T * width + h * shape.D, width};
}

/// A block of scores: some queries times some keys, row by row in key_block numbers.
struct Block {
  Range queries, keys;
  float* scores;

  float* row(std::int64_t query) const { return scores + (query - queries.first) * key_block; }
  GemmOperand whole() const { return {scores, key_block}; }
  GemmOperand transposed() const { return {scores, key_block, true}; }
  /// How many of the block's keys a query sees.
  std::int64_t visible(const AttentionShape& shape, std::int64_t query) const
  {
    return std::clamp<std::int64_t>(shape.mask.visible_keys(query, shape.T) - keys.first, 0, keys.count);
  }
};

/// The block of @p length that begins at @p first, of @p all.
Range block_at(std::int64_t first, std::int64_t length, std::int64_t all)
{
  return {first, std::min(length, all - first)};
}

/// The mask of attention dropout of one head of one sequence.
struct HeadDropout {
  HeadDropout(const Dropout& dropout, std::int64_t b, std::int64_t h)
      : mask(dropout), active(dropout.active()), sequence(b), head(h)
  {
  }
  /// Multiplies the weights of one query by their factors; @p weights begins at key @p first, a multiple of 4.
  void apply(float* weights, std::int64_t query, std::int64_t first, std::int64_t count) const
  {
    if (!active) return;
    for (std::int64_t k = 0; k < count; k += 4) {
      const std::array<double, 4> four = mask.factors(sequence, query, head, first + k);
      for (std::int64_t i = 0; i < std::min<std::int64_t>(4, count - k); ++i)
        weights[k + i] *= static_cast<float>(four[static_cast<std::size_t>(i)]);
    }
  }

  DropoutMask mask;
  bool active;
  std::int64_t sequence, head;
};

/// The soft-max of a row as far as it has been seen.
struct RunningSoftmax {
  std::array<float, query_block> maximum, sum;

  RunningSoftmax()
  {
    maximum.fill(-std::numeric_limits<float>::infinity());
    sum.fill(0);
  }
  /// Turns @p n scores of row @p i into exp(score - maximum), and brings @p out, D numbers, to the same maximum. Scores
  /// behind the last, up to whole vectors, become anything.
  void add(std::size_t i, float* scores, std::int64_t n, float* out, std::int64_t D)
  {
    const std::int64_t padded = whole_vectors(n);
    std::fill(scores + n, scores + padded, -std::numeric_limits<float>::infinity());
    const float next_maximum = largest(scores, padded, maximum[i]);
    const float rescale = sum[i] > 0 ? exponential(maximum[i] - next_maximum) : 0;
    const float more =
        lane_sum(padded, [&](std::int64_t k) { return scores[k] = exponential(scores[k] - next_maximum); });
    if (sum[i] > 0 && rescale != 1)
#pragma omp simd
      for (std::int64_t d = 0; d < D; ++d) out[d] *= rescale;
    maximum[i] = next_maximum;
    sum[i] = sum[i] * rescale + more;
  }
  /// The logarithm of the sum of exp(score) of row @p i.
  float log_sum_exp(std::size_t i) const
  {
    return maximum[i] + std::log(sum[i]);
  }
};

/// What one thread attends with.
struct HeadForward {
  const AttentionShape& shape;
  HeadRows q, k, v, y;
  HeadDropout dropout;
  float* scores;  // query_block x key_block

  /// The outputs of one block of queries.
  RunningSoftmax attend(Range queries) const
  {
    const float scale = 1 / std::sqrt(static_cast<float>(shape.D));
    const std::int64_t seen = shape.mask.visible_keys(queries.end() - 1, shape.T);
    RunningSoftmax softmax;
    for (std::int64_t first = 0; first < seen; first += key_block) {
      const Block block{queries, block_at(first, key_block, seen), scores};
      gemm(scores, key_block, q.from(queries.first), k.transposed_from(first), queries.count, block.keys.count,
           shape.D, scale, false);
      for (std::int64_t t = queries.first; t < queries.end(); ++t) {
        const std::int64_t n = block.visible(shape, t);
        softmax.add(static_cast<std::size_t>(t - queries.first), block.row(t), n, y.row(t), shape.D);
        dropout.apply(block.row(t), t, first, n);
        std::fill(block.row(t) + n, block.row(t) + block.keys.count, 0.0F);
      }
      gemm(y.row(queries.first), y.stride, block.whole(), v.from(first), queries.count, shape.D, block.keys.count,
           1, first > 0);
    }
    for (std::int64_t t = queries.first; t < queries.end(); ++t) {
      const auto i = static_cast<std::size_t>(t - queries.first);
      const float inverse = 1 / softmax.sum[i];
#pragma omp simd
      for (std::int64_t d = 0; d < shape.D; ++d) y.row(t)[d] *= inverse;
    }
    return softmax;
  }
};

}  // namespace

void CpuKernels::attention_forward(const Tensor& y, const Tensor& log_sum_exp, const Tensor& qkv,
                                   const AttentionShape& shape, const Dropout& dropout) const
{
  const std::int64_t heads = shape.heads.count, blocks = (shape.T + query_block - 1) / query_block;
  float* const lse = log_sum_exp.data<float>();
  scratch_.reserve(query_block * key_block);
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t i = 0; i < shape.B * heads * blocks; ++i) {
    const std::int64_t bh = i / blocks, b = bh / heads, h = bh % heads;
    const std::int64_t first = (blocks - 1 - i % blocks) * query_block;  // the last queries have most keys
    const HeadForward head{shape,
                           section(qkv, shape, b, h, 0),
                           section(qkv, shape, b, h, 1),
                           section(qkv, shape, b, h, 2),
                           outputs(y, shape, b, h),
                           HeadDropout(dropout, b, shape.heads.first + h),
                           scratch_.of(omp_get_thread_num())};
    const Range queries = block_at(first, query_block, shape.T);
    const RunningSoftmax softmax = head.attend(queries);
    for (std::int64_t t = 0; t < queries.count; ++t)
      lse[bh * shape.T + queries.first + t] = softmax.log_sum_exp(static_cast<std::size_t>(t));
  }
}

void CpuKernels::cached_attention_forward(const Tensor& y, const Tensor& cache, const Tensor& qkv,
                                          const AttentionShape& shape, Range tokens) const
{
  append_keys_and_values(cache, qkv, tokens);
  const std::int64_t heads = shape.heads.count, width = heads * shape.D;
  const std::int64_t blocks = (tokens.count + query_block - 1) / query_block;
  scratch_.reserve(query_block * key_block);
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t i = 0; i < heads * blocks; ++i) {
    const std::int64_t h = i / blocks, first = tokens.first + i % blocks * query_block;
    float* const keys = cache.data<float>() + h * shape.D;
    const HeadForward head{shape,
                           {qkv.data<float>() + h * shape.D, 3 * width, tokens.first},
                           {keys, 2 * width},
                           {keys + width, 2 * width},
                           {y.data<float>() + h * shape.D, width, tokens.first},
                           HeadDropout({}, 0, h),
                           scratch_.of(omp_get_thread_num())};
    head.attend(block_at(first, query_block, tokens.end()));
  }
}

namespace {

/// What one thread goes back through one head with.
struct HeadBackward {
  const AttentionShape& shape;
  HeadRows q, k, v, dq, dk, dv, y, dy;
  HeadDropout dropout;
  const float* log_sum_exp;  // (T) of this head
  float* weights;            // query_block x key_block: p, and p after dropout
  float* dscores;            // query_block x key_block: the gradients of the weights, then of the scores
  float* inner_products;     // (T): dy y of each token

  /// Fills inner_products, which is the sum over keys of weight times gradient of the weight.
  void multiply_outputs() const
  {
    for (std::int64_t t = 0; t < shape.T; ++t) {
      const float *const a = dy.row(t), *const b = y.row(t);
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t d = 0; d < shape.D; ++d) sum += a[d] * b[d];
      inner_products[t] = sum;
    }
  }

  /// dscore = weight (dweight factor - dy y), row by row; weights are those after dropout at the end.
  void score_gradients(const Block& p, const Block& ds) const
  {
    for (std::int64_t t = p.queries.first; t < p.queries.end(); ++t) {
      float *const weight = p.row(t), *const dscore = ds.row(t);
      const std::int64_t n = p.visible(shape, t);
      const float lse = log_sum_exp[t], inner_product = inner_products[t];
      dropout.apply(dscore, t, p.keys.first, n);
#pragma omp simd
      for (std::int64_t i = 0; i < whole_vectors(n); ++i) {
        weight[i] = exponential(weight[i] - lse);
        dscore[i] = weight[i] * (dscore[i] - inner_product);
      }
      dropout.apply(weight, t, p.keys.first, n);
      std::fill(weight + n, weight + p.keys.count, 0.0F);
      std::fill(dscore + n, dscore + p.keys.count, 0.0F);
    }
  }

  /// Adds what one block of queries and keys gives to the gradients of both; @p first_keys, @p first_queries say that
  /// nothing has been added to those of these queries, or keys, before.
  void go_back(Range queries, Range keys, bool first_keys, bool first_queries) const
  {
    const float scale = 1 / std::sqrt(static_cast<float>(shape.D));
    const Block p{queries, keys, weights}, ds{queries, keys, dscores};
    const std::int64_t Q = queries.count, K = keys.count, D = shape.D;
    gemm(weights, key_block, q.from(queries.first), k.transposed_from(keys.first), Q, K, D, scale, false);
    gemm(dscores, key_block, dy.from(queries.first), v.transposed_from(keys.first), Q, K, D, 1, false);
    score_gradients(p, ds);
    gemm(dv.row(keys.first), dv.stride, p.transposed(), dy.from(queries.first), K, D, Q, 1, !first_queries);
    gemm(dk.row(keys.first), dk.stride, ds.transposed(), q.from(queries.first), K, D, Q, scale, !first_queries);
    gemm(dq.row(queries.first), dq.stride, ds.whole(), k.from(keys.first), Q, D, K, scale, !first_keys);
  }

  /// All blocks of the head. Every query sees the first keys; keys that nobody sees get zeros.
  void go_back() const
  {
    multiply_outputs();
    for (std::int64_t key = 0; key < shape.T; key += key_block) {
      const Range keys = block_at(key, key_block, shape.T);
      bool seen = false;
      for (std::int64_t query = 0; query < shape.T; query += query_block) {
        const Range queries = block_at(query, query_block, shape.T);
        if (shape.mask.visible_keys(queries.end() - 1, shape.T) <= key) continue;
        go_back(queries, keys, key == 0, !seen);
        seen = true;
      }
    }
  }
};

}  // namespace

void CpuKernels::attention_backward(const Tensor& dqkv, const Tensor& dy, const Tensor& y,
                                    const Tensor& log_sum_exp, const Tensor& qkv, const AttentionShape& shape,
                                    const Dropout& dropout) const
{
  const std::int64_t heads = shape.heads.count, block = query_block * key_block;
  const float* const lse = log_sum_exp.data<float>();
  scratch_.reserve(2 * block + shape.T);
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t bh = 0; bh < shape.B * heads; ++bh) {
    const std::int64_t b = bh / heads, h = bh % heads;
    float* const scratch = scratch_.of(omp_get_thread_num());
    const HeadBackward head{shape,
                            section(qkv, shape, b, h, 0),
                            section(qkv, shape, b, h, 1),
                            section(qkv, shape, b, h, 2),
                            section(dqkv, shape, b, h, 0),
                            section(dqkv, shape, b, h, 1),
                            section(dqkv, shape, b, h, 2),
                            outputs(y, shape, b, h),
                            outputs(dy, shape, b, h),
                            HeadDropout(dropout, b, shape.heads.first + h),
                            lse + bh * shape.T,
                            scratch,
                            scratch + block,
                            scratch + 2 * block};
    head.go_back();
  }
}

}  // namespace rankwise
