#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <omp.h>
#include <type_traits>

#include "gpt2/kernels/attention_heads.hpp"
#include "gpt2/kernels/cpu/cpu.hpp"
#include "gpt2/kernels/cpu/gemm.hpp"
#include "gpt2/kernels/cpu/vector_math.hpp"

// The scores of a head are a T x T matrix. It is computed in blocks of query_block x key_block that stay in cache,
// and never stored: the forward pass carries the maximum and the sum of each row's softmax from block to block
// (Milakov and Gimelshein 2018; Dao et al. 2022, algorithm 1), the backward pass computes each block again (there,
// algorithm 4). Blocks that the mask hides are skipped.
//
// In bf16 the factors of all products are bf16: weights and gradients of scores are rounded, as on the tensor cores
// of a GPU. Sums over blocks, of outputs and of gradients, are kept in f32 until they are complete.

namespace rankwise {

namespace {

constexpr std::int64_t query_block = 64, key_block = 128;

/// to[i] = from[i], rounded to T, for n numbers.
template <class T>
void round_row(T* to, const float* from, std::int64_t n)
{
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) to[i] = narrow<T>(from[i]);
}

/// A product of blocks times the factor @p scale, in f32.
void multiply(float* out, std::int64_t out_stride, GemmOperand<float> a, GemmOperand<float> b, std::int64_t m,
              std::int64_t n, std::int64_t k, float scale, bool accumulate)
{
  gemm(out, out_stride, a, b, m, n, k, scale, accumulate);
}
/// The same in bf16, where Block::scale() applies the factor:
/// in the library, scaling takes longer than the product.
void multiply(float* out, std::int64_t out_stride, GemmOperand<bf16> a, GemmOperand<bf16> b, std::int64_t m,
              std::int64_t n, std::int64_t k, float, bool accumulate)
{
  gemm(out, out_stride, a, b, m, n, k, accumulate);
}

/// One head of one sequence inside a larger matrix: its queries, keys, values, outputs, or gradients.
template <class T>
struct HeadRows {
  T* first;                      ///< channel 0 of the first token
  std::int64_t stride;           ///< elements from one token to the next
  std::int64_t first_token = 0;  ///< position of the first token in the sequence

  T* row(std::int64_t t) const { return first + (t - first_token) * stride; }
  GemmOperand<T> from(std::int64_t t) const { return {row(t), stride}; }
  GemmOperand<T> transposed_from(std::int64_t t) const { return {row(t), stride, true}; }
};

/// Some rows of a head of D channels as an operand. In bf16 they are copied to @p scratch without gaps, because the
/// library's product of rows with gaps is several times slower; in f32 they are used in place.
template <class T>
HeadRows<T> side_by_side(const HeadRows<T>& rows, Range tokens, std::int64_t D, T* scratch)
{
  if constexpr (std::is_same_v<T, float>) {
    return rows;
  } else {
    for (std::int64_t t = tokens.first; t < tokens.end(); ++t)
      std::copy_n(rows.row(t), D, scratch + (t - tokens.first) * D);
    return {scratch, D, tokens.first};
  }
}

/// One of the three sections of (R, 3 D heads): 0 queries, 1 keys, 2 values.
template <class T>
HeadRows<T> section(const Tensor& qkv, const AttentionShape& shape, std::int64_t b, std::int64_t h, int which)
{
  const std::int64_t width = shape.heads.count * shape.D;
  return {qkv.data<T>() + b * shape.T * 3 * width + which * width + h * shape.D, 3 * width};
}

/// The head in (R, D heads).
template <class T>
HeadRows<T> outputs(const Tensor& y, const AttentionShape& shape, std::int64_t b, std::int64_t h)
{
  const std::int64_t width = shape.heads.count * shape.D;
  return {y.data<T>() + b * shape.T * width + h * shape.D, width};
}

/// A block of scores: some queries times some keys, row by row; and its copy rounded to type T, which in f32 is the
/// block itself.
template <class T>
struct Block {
  Range queries, keys;
  float* scores;
  T* rounded;  // (as many numbers as scores); in f32 the same memory

  /// Numbers from one row to the next: in bf16 the smallest multiple of a vector.
  std::int64_t stride() const { return std::is_same_v<T, float> ? key_block : whole_vectors(keys.count); }
  float* row(std::int64_t query) const { return scores + (query - queries.first) * stride(); }
  GemmOperand<T> whole() const { return {rounded, stride()}; }
  GemmOperand<T> transposed() const { return {rounded, stride(), true}; }
  /// In bf16: multiplies the scores by the factor that multiply() left out.
  void scale(float factor) const
  {
    if constexpr (!std::is_same_v<T, float>)
#pragma omp simd
      for (std::int64_t i = 0; i < queries.count * stride(); ++i) scores[i] *= factor;
  }
  /// In bf16: rounds the scores to `rounded`.
  void round() const
  {
    if constexpr (!std::is_same_v<T, float>) round_row(rounded, scores, queries.count * stride());
  }
  /// Number of the block's keys that are among the first @p seen of the sequence.
  std::int64_t visible(std::int64_t seen) const
  {
    return std::clamp<std::int64_t>(seen - keys.first, 0, keys.count);
  }
};

/// The block of at most @p length elements that begins at @p first, of @p all.
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
  /// Multiplies the weights of one query by their dropout
  /// factors; @p weights begins at key @p first, a multiple of 4.
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

/// The online softmax of rows, over the keys so far.
struct RunningSoftmax {
  std::array<float, query_block> maximum, sum;

  RunningSoftmax()
  {
    maximum.fill(-std::numeric_limits<float>::infinity());
    sum.fill(0);
  }
  /// Replaces @p n scores of row @p i by exp(score - maximum), and rescales @p out, D numbers, to the new maximum.
  /// Scores after the last one, up to a whole vector, become undefined.
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
  /// The log of the sum of exp(score) of row @p i.
  float log_sum_exp(std::size_t i) const
  {
    return maximum[i] + std::log(sum[i]);
  }
};

constexpr std::int64_t block_floats = query_block * key_block;  // scratch memory for a block of scores

/// The scratch memory of one thread in the forward pass, in floats: a block of scores; in bf16 also the rounded
/// block, outputs and queries of a block, and keys and values of @p tokens.
template <class T>
std::int64_t forward_floats(std::int64_t tokens, std::int64_t D)
{
  return std::is_same_v<T, float> ? block_floats : 2 * block_floats + 2 * query_block * D + tokens * D;
}

/// The memory of a block's copy rounded to type T: in bf16 separate scratch memory.
template <class T>
T* rounded_block(float* scores, float* scratch)
{
  if constexpr (std::is_same_v<T, float>)
    return scores;
  else
    return reinterpret_cast<T*>(scratch);
}

/// The inputs, outputs and scratch memory of one thread in the forward pass.
template <class T>
struct HeadForward {
  const AttentionShape& shape;
  HeadRows<T> q, k, v, y;
  HeadDropout dropout;
  float* scratch;  // (forward_floats())
  VisibleKeys visible_keys;

  /// The memory in which the outputs of a block of queries are summed: y, or in bf16 scratch memory.
  HeadRows<float> sums(Range queries) const
  {
    if constexpr (std::is_same_v<T, float>)
      return y;
    else
      return {scratch + 2 * block_floats, shape.D, queries.first};
  }

  /// Computes the outputs of one block of queries. In bf16 the keys and values that it sees are copied, unless
  /// there are so few queries, as in generation token by token,
  /// that the copy would take longer than the computation.
  RunningSoftmax attend(Range queries) const
  {
    constexpr std::int64_t few = 16;
    const std::int64_t seen = visible_keys(dropout.sequence, queries.end() - 1), D = shape.D;
    if (queries.count < few) return attend(queries, seen, q, k, v);
    T* const at = reinterpret_cast<T*>(scratch + 2 * block_floats + query_block * D);
    return attend(queries, seen, side_by_side(q, queries, D, at),
                  side_by_side(k, {0, seen}, D, at + query_block * D),
                  side_by_side(v, {0, seen}, D, at + (query_block + seen) * D));
  }

  RunningSoftmax attend(Range queries, std::int64_t seen, const HeadRows<T>& query, const HeadRows<T>& key,
                        const HeadRows<T>& value) const
  {
    const float scale = 1 / std::sqrt(static_cast<float>(shape.D));
    const HeadRows<float> out = sums(queries);
    RunningSoftmax softmax;
    for (std::int64_t first = 0; first < seen; first += key_block) {
      const Block<T> block{queries, block_at(first, key_block, seen), scratch,
                           rounded_block<T>(scratch, scratch + block_floats)};
      multiply(block.scores, block.stride(), query.from(queries.first), key.transposed_from(first), queries.count,
               block.keys.count, shape.D, scale, false);
      block.scale(scale);
      for (std::int64_t t = queries.first; t < queries.end(); ++t) {
        const std::int64_t n = block.visible(visible_keys(dropout.sequence, t));
        softmax.add(static_cast<std::size_t>(t - queries.first), block.row(t), n, out.row(t), shape.D);
        dropout.apply(block.row(t), t, first, n);
        std::fill(block.row(t) + n, block.row(t) + block.keys.count, 0.0F);
      }
      block.round();
      multiply(out.row(queries.first), out.stride, block.whole(), value.from(first), queries.count, shape.D,
               block.keys.count, 1, first > 0);
    }
    for (std::int64_t t = queries.first; t < queries.end(); ++t) {
      const float inverse = 1 / softmax.sum[static_cast<std::size_t>(t - queries.first)];
      const float* const sum = out.row(t);
      T* const to = y.row(t);
#pragma omp simd
      for (std::int64_t d = 0; d < shape.D; ++d) to[d] = narrow<T>(sum[d] * inverse);
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
  const VisibleKeys visible_keys(shape);
  with_fast_type(y.type(), [&]<class T>(T) {
    scratch_.reserve(forward_floats<T>(shape.T, shape.D));
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t i = 0; i < shape.B * heads * blocks; ++i) {
      const std::int64_t bh = i / blocks, b = bh / heads, h = bh % heads;
      const std::int64_t first = (blocks - 1 - i % blocks) * query_block;  // the last queries have the most keys
      const HeadForward<T> head{shape,
                                section<T>(qkv, shape, b, h, 0),
                                section<T>(qkv, shape, b, h, 1),
                                section<T>(qkv, shape, b, h, 2),
                                outputs<T>(y, shape, b, h),
                                HeadDropout(dropout, b, shape.heads.first + h),
                                scratch_.of(omp_get_thread_num()),
                                visible_keys};
      const Range queries = block_at(first, query_block, shape.T);
      const RunningSoftmax softmax = head.attend(queries);
      for (std::int64_t t = 0; t < queries.count; ++t)
        lse[bh * shape.T + queries.first + t] = softmax.log_sum_exp(static_cast<std::size_t>(t));
    }
  });
}

void CpuKernels::cached_attention_forward(const Tensor& y, const Tensor& cache, const Tensor& qkv,
                                          const AttentionShape& shape, Range tokens) const
{
  append_keys_and_values(cache, qkv, tokens);
  const VisibleKeys visible_keys({.B = 1, .T = tokens.end()});  // causal, without padding
  const std::int64_t heads = shape.heads.count, width = heads * shape.D;
  const std::int64_t blocks = (tokens.count + query_block - 1) / query_block;
  with_fast_type(y.type(), [&]<class T>(T) {
    scratch_.reserve(forward_floats<T>(tokens.end(), shape.D));
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t i = 0; i < heads * blocks; ++i) {
      const std::int64_t h = i / blocks, first = tokens.first + i % blocks * query_block;
      T* const keys = cache.data<T>() + h * shape.D;
      const HeadForward<T> head{shape,
                                {qkv.data<T>() + h * shape.D, 3 * width, tokens.first},
                                {keys, 2 * width},
                                {keys + width, 2 * width},
                                {y.data<T>() + h * shape.D, width, tokens.first},
                                HeadDropout({}, 0, h),
                                scratch_.of(omp_get_thread_num()),
                                visible_keys};
      head.attend(block_at(first, query_block, tokens.end()));
    }
  });
}

namespace {

/// The gradients of one head's queries, keys and values while they are summed over blocks: in dqkv, or in bf16 in
/// scratch memory.
template <class T>
struct HeadGradients {
  /// @param scratch  (floats()), used in bf16 only.
  HeadGradients(const Tensor& dqkv, const AttentionShape& shape, std::int64_t b, std::int64_t h, float* scratch)
      : tokens(shape.T), D(shape.D)
  {
    for (int i = 0; i < 3; ++i) {
      const auto at = static_cast<std::size_t>(i);
      to[at] = section<T>(dqkv, shape, b, h, i);
      if constexpr (std::is_same_v<T, float>)
        sums[at] = to[at];
      else
        sums[at] = {scratch + i * tokens * D, D};
    }
  }
  /// The scratch memory of one head, in floats.
  static std::int64_t floats(const AttentionShape& shape)
  {
    return std::is_same_v<T, float> ? 0 : 3 * shape.T * shape.D;
  }
  /// Rounds the sums into dqkv.
  void store() const
  {
    if constexpr (!std::is_same_v<T, float>)
      for (std::size_t i = 0; i < 3; ++i)
        for (std::int64_t t = 0; t < tokens; ++t) round_row(to[i].row(t), sums[i].row(t), D);
  }
  const HeadRows<float>& queries() const { return sums[0]; }
  const HeadRows<float>& keys() const { return sums[1]; }
  const HeadRows<float>& values() const { return sums[2]; }

  std::int64_t tokens, D;
  std::array<HeadRows<T>, 3> to{};
  std::array<HeadRows<float>, 3> sums{};
};

/// The inputs, outputs and scratch memory of one thread in the backward pass of one head.
template <class T>
struct HeadBackward {
  const AttentionShape& shape;
  HeadRows<T> q, k, v, y, dy;
  HeadGradients<T> gradients;
  HeadDropout dropout;
  const float* log_sum_exp;  // (T) of this head
  float* weights;            // query_block x key_block: p, and p after dropout
  float* dscores;            // query_block x key_block: the gradients of the weights, then of the scores
  float* rounded;            // in bf16: memory for the rounded copy of one of the two
  float* inner_products;     // (T): dy y of each token
  VisibleKeys visible_keys;

  /// Fills inner_products: dy.y of each token, which equals
  /// the sum over keys of weight times gradient of the weight.
  void multiply_outputs() const
  {
    for (std::int64_t t = 0; t < shape.T; ++t) {
      const T *const a = dy.row(t), *const b = y.row(t);
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t d = 0; d < shape.D; ++d) sum += widen(a[d]) * widen(b[d]);
      inner_products[t] = sum;
    }
  }

  /// dscore = weight (factor dweight - dy.y), row by row; afterwards the weights are those after dropout.
  void score_gradients(const Block<T>& p, const Block<T>& ds) const
  {
    for (std::int64_t t = p.queries.first; t < p.queries.end(); ++t) {
      float *const weight = p.row(t), *const dscore = ds.row(t);
      const std::int64_t n = p.visible(visible_keys(dropout.sequence, t));
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

  /// Adds the contributions of one block of queries and keys to the gradients of both: dq += scale dscore k, dk +=
  /// scale dscore q, dv += factor weight dy. With @p first_keys or @p first_queries nothing has been added before
  /// to the gradients of these queries, or of these keys, so they are overwritten.
  void backward(Range queries, Range keys, bool first_keys, bool first_queries) const
  {
    const float scale = 1 / std::sqrt(static_cast<float>(shape.D));
    const Block<T> p{queries, keys, weights, rounded_block<T>(weights, rounded)};
    const Block<T> ds{queries, keys, dscores, rounded_block<T>(dscores, rounded + block_floats / 2)};
    const HeadRows<float>&dq = gradients.queries(), &dk = gradients.keys(), &dv = gradients.values();
    const std::int64_t Q = queries.count, K = keys.count, D = shape.D;
    multiply(weights, p.stride(), q.from(queries.first), k.transposed_from(keys.first), Q, K, D, scale, false);
    multiply(dscores, p.stride(), dy.from(queries.first), v.transposed_from(keys.first), Q, K, D, 1, false);
    p.scale(scale);
    score_gradients(p, ds);
    p.round();
    ds.scale(scale);
    ds.round();
    multiply(dv.row(keys.first), dv.stride, p.transposed(), dy.from(queries.first), K, D, Q, 1, !first_queries);
    multiply(dk.row(keys.first), dk.stride, ds.transposed(), q.from(queries.first), K, D, Q, scale, !first_queries);
    multiply(dq.row(queries.first), dq.stride, ds.whole(), k.from(keys.first), Q, D, K, scale, !first_keys);
  }

  /// Processes all blocks of the head. Every query sees the
  /// first keys; keys that no query sees get the gradient zero.
  void backward() const
  {
    multiply_outputs();
    for (std::int64_t key = 0; key < shape.T; key += key_block) {
      const Range keys = block_at(key, key_block, shape.T);
      bool seen = false;
      for (std::int64_t query = 0; query < shape.T; query += query_block) {
        const Range queries = block_at(query, query_block, shape.T);
        if (visible_keys(dropout.sequence, queries.end() - 1) <= key) continue;
        backward(queries, keys, key == 0, !seen);
        seen = true;
      }
      for (std::int64_t t = keys.first; !seen && t < keys.end(); ++t)
        for (const HeadRows<float>& gradient : {gradients.keys(), gradients.values()})
          std::fill_n(gradient.row(t), shape.D, 0.0F);
    }
    gradients.store();
  }
};

}  // namespace

void CpuKernels::attention_backward(const Tensor& dqkv, const Tensor& dy, const Tensor& y,
                                    const Tensor& log_sum_exp, const Tensor& qkv, const AttentionShape& shape,
                                    const Dropout& dropout) const
{
  const std::int64_t heads = shape.heads.count;
  const float* const lse = log_sum_exp.data<float>();
  const VisibleKeys visible_keys(shape);
  with_fast_type(y.type(), [&]<class T>(T) {
    constexpr std::int64_t blocks = (std::is_same_v<T, float> ? 2 : 3) * block_floats;
    const std::int64_t head_size = shape.T * shape.D, copies = std::is_same_v<T, float> ? 0 : 2 * head_size;
    scratch_.reserve(blocks + shape.T + HeadGradients<T>::floats(shape) + copies);
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t bh = 0; bh < shape.B * heads; ++bh) {
      const std::int64_t b = bh / heads, h = bh % heads;
      float *const scratch = scratch_.of(omp_get_thread_num()), *const gradients = scratch + blocks + shape.T;
      T* const at = reinterpret_cast<T*>(gradients + HeadGradients<T>::floats(shape));
      const Range all{0, shape.T};
      const HeadBackward<T> head{shape,
                                 side_by_side(section<T>(qkv, shape, b, h, 0), all, shape.D, at),
                                 side_by_side(section<T>(qkv, shape, b, h, 1), all, shape.D, at + head_size),
                                 side_by_side(section<T>(qkv, shape, b, h, 2), all, shape.D, at + 2 * head_size),
                                 outputs<T>(y, shape, b, h),
                                 side_by_side(outputs<T>(dy, shape, b, h), all, shape.D, at + 3 * head_size),
                                 HeadGradients<T>(dqkv, shape, b, h, gradients),
                                 HeadDropout(dropout, b, shape.heads.first + h),
                                 lse + bh * shape.T,
                                 scratch,
                                 scratch + block_floats,
                                 scratch + 2 * block_floats,
                                 scratch + blocks,
                                 visible_keys};
      head.backward();
    }
  });
}

}  // namespace rankwise
