#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <omp.h>
#include <type_traits>

#include "gpt2/kernels/cpu/attention_blocks.hpp"
#include "gpt2/kernels/cpu/cpu.hpp"

namespace rankwise {

namespace {

/// The online softmax of rows, over the keys so far.
struct RunningSoftmax {
  std::array<float, query_block> maximum, sum;

  RunningSoftmax()
  {
    maximum.fill(-std::numeric_limits<float>::infinity());
    sum.fill(0);
  }
  /// Replaces @p n products q.k of row @p i by exp(@p scale product - maximum), and rescales @p out, D numbers, to the new
  /// maximum. Numbers after the last one, up to a whole vector, become undefined.
  void add(std::size_t i, float* scores, std::int64_t n, float scale, float* out, std::int64_t D)
  {
    const std::int64_t padded = whole_vectors(n);
    std::fill(scores + n, scores + padded, -std::numeric_limits<float>::infinity());
    const float next_maximum =
        std::max(maximum[i], scale * largest(scores, padded, -std::numeric_limits<float>::infinity()));
    const float rescale = sum[i] > 0 ? exponential(maximum[i] - next_maximum) : 0;
    const float more =
        lane_sum(padded, [&](std::int64_t k) { return scores[k] = exponential(scale * scores[k] - next_maximum); });
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

/// The scratch memory of one thread in the forward pass, in floats: a block of scores; in bf16 also the rounded
/// block, outputs and queries of a block, and @p tokens keys and values.
template <class T>
std::int64_t forward_floats(std::int64_t tokens, std::int64_t D)
{
  return std::is_same_v<T, float> ? block_floats : 2 * block_floats + 2 * query_block * D + tokens * D;
}

/// The inputs and scratch memory of one thread in the forward pass.
template <class T>
struct HeadForward {
  std::int64_t D;
  HeadRows<T> q, k, v;
  HeadDropout dropout;
  float* scratch;  // (forward_floats())
  VisibleKeys visible_keys;

  /// The memory in which the outputs of a block of queries are summed: @p y, or in bf16 scratch memory.
  HeadRows<float> sums(const HeadRows<T>& y, Range queries) const
  {
    if constexpr (std::is_same_v<T, float>)
      return y;
    else
      return {scratch + 2 * block_floats, D, queries.first};
  }

  /// The softmax of one block of queries over the visible ones of @p keys, before the division: @p out is the sum
  /// of exp(score - maximum) v. In bf16 keys and values are copied, unless there are so few queries, as in
  /// generation token by token, that the copy would take longer than the computation.
  RunningSoftmax attend(const HeadRows<float>& out, Range queries, Range keys) const
  {
    constexpr std::int64_t few = 16;
    const Range seen = intersect(keys, {0, visible_keys(dropout.sequence, queries.end() - 1)});
    if (queries.count < few) return attend(out, queries, seen, q, k, v);
    T* const at = reinterpret_cast<T*>(scratch + 2 * block_floats + query_block * D);
    return attend(out, queries, seen, side_by_side(q, queries, D, at),
                  side_by_side(k, seen, D, at + query_block * D),
                  side_by_side(v, seen, D, at + (query_block + seen.count) * D));
  }

  RunningSoftmax attend(const HeadRows<float>& out, Range queries, Range seen, const HeadRows<T>& query,
                        const HeadRows<T>& key, const HeadRows<T>& value) const
  {
    const float scale = 1 / std::sqrt(static_cast<float>(D));
    RunningSoftmax softmax;
    for (std::int64_t first = seen.first; first < seen.end(); first += key_block) {
      const Block<T> block{queries, block_at(first, key_block, seen.end()), scratch,
                           rounded_block<T>(scratch, scratch + block_floats)};
      gemm(block.scores, block.stride(), query.from(queries.first), key.transposed_from(first), queries.count,
           block.keys.count, D, false);
      for (std::int64_t t = queries.first; t < queries.end(); ++t) {
        const std::int64_t n = block.visible(visible_keys(dropout.sequence, t));
        softmax.add(static_cast<std::size_t>(t - queries.first), block.row(t), n, scale, out.row(t), D);
        dropout.apply(block.row(t), t, first, n);
        std::fill(block.row(t) + n, block.row(t) + block.keys.count, 0.0F);
        block.round(t);
      }
      gemm(out.row(queries.first), out.stride, block.whole(), value.from(first), queries.count, D, block.keys.count,
           first > seen.first);
    }
    for (std::int64_t t = queries.first; seen.empty() && t < queries.end(); ++t) std::fill_n(out.row(t), D, 0.0F);
    return softmax;
  }

  /// attend() and the division, into @p y: for queries that see at least one of @p keys.
  RunningSoftmax attend_and_divide(const HeadRows<T>& y, Range queries, Range keys) const
  {
    const HeadRows<float> out = sums(y, queries);
    const RunningSoftmax softmax = attend(out, queries, keys);
    for (std::int64_t t = queries.first; t < queries.end(); ++t) {
      const float inverse = 1 / softmax.sum[static_cast<std::size_t>(t - queries.first)];
      const float* const sum = out.row(t);
      T* const to = y.row(t);
#pragma omp simd
      for (std::int64_t d = 0; d < D; ++d) to[d] = narrow<T>(sum[d] * inverse);
    }
    return softmax;
  }
};

/// Calls f(b, h, queries) for each block of the queries of each head, in parallel.
template <class F>
void for_each_query_block(const AttentionShape& shape, Range queries, F&& f)
{
  const std::int64_t heads = shape.heads.count, blocks = (queries.count + query_block - 1) / query_block;
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t i = 0; i < shape.B * heads * blocks; ++i) {
    const std::int64_t bh = i / blocks;
    // The last queries have the most keys.
    const std::int64_t first = queries.first + (blocks - 1 - i % blocks) * query_block;
    f(bh / heads, bh % heads, block_at(first, query_block, queries.end()));
  }
}

}  // namespace

void CpuKernels::attention_forward(const Tensor& y, const Tensor& log_sum_exp, const Tensor& qkv,
                                   const AttentionShape& shape, const Dropout& dropout) const
{
  const std::int64_t width = shape.heads.count * shape.D;
  const Range all{0, shape.T};
  float* const lse = log_sum_exp.data<float>();
  const VisibleKeys visible_keys(shape);
  with_fast_type(y.type(), [&]<class T>(T) {
    scratch_.reserve(forward_floats<T>(shape.T, shape.D));
    for_each_query_block(shape, all, [&](std::int64_t b, std::int64_t h, Range queries) {
      const std::int64_t column = h * shape.D;
      const HeadForward<T> head{shape.D,
                                head_rows<T>(qkv, b, all, 3 * width, column),
                                head_rows<T>(qkv, b, all, 3 * width, width + column),
                                head_rows<T>(qkv, b, all, 3 * width, 2 * width + column),
                                HeadDropout(dropout, b, shape.heads.first + h),
                                scratch_.of(omp_get_thread_num()),
                                visible_keys};
      const RunningSoftmax softmax = head.attend_and_divide(head_rows<T>(y, b, all, width, column), queries, all);
      for (std::int64_t t = 0; t < queries.count; ++t)
        lse[(b * shape.heads.count + h) * shape.T + queries.first + t] =
            softmax.log_sum_exp(static_cast<std::size_t>(t));
    });
  });
}

void CpuKernels::attention_partial(const SoftmaxPartial& partial, const Tensor& qkv, const Tensor& kv,
                                   const AttentionShape& shape, const AttentionRuns& runs,
                                   const Dropout& dropout) const
{
  const std::int64_t width = shape.heads.count * shape.D;
  float *const maximum = partial.maximum.data<float>(), *const sum = partial.sum.data<float>();
  const VisibleKeys visible_keys(shape);
  with_fast_type(qkv.type(), [&]<class T>(T) {
    scratch_.reserve(forward_floats<T>(runs.keys.count, shape.D));
    for_each_query_block(shape, runs.queries, [&](std::int64_t b, std::int64_t h, Range queries) {
      const std::int64_t column = h * shape.D;
      const HeadForward<T> head{shape.D,
                                head_rows<T>(qkv, b, runs.queries, 3 * width, column),
                                head_rows<T>(kv, b, runs.keys, 2 * width, column),
                                head_rows<T>(kv, b, runs.keys, 2 * width, width + column),
                                HeadDropout(dropout, b, shape.heads.first + h),
                                scratch_.of(omp_get_thread_num()),
                                visible_keys};
      const RunningSoftmax softmax =
          head.attend(head_rows<float>(partial.output, b, runs.queries, width, column), queries, runs.keys);
      const std::int64_t row =
          (b * shape.heads.count + h) * runs.queries.count + queries.first - runs.queries.first;
      std::copy_n(softmax.maximum.begin(), queries.count, maximum + row);
      std::copy_n(softmax.sum.begin(), queries.count, sum + row);
    });
  });
}

void CpuKernels::cached_attention_forward(const Tensor& y, const Tensor& cache, const Tensor& qkv,
                                          const AttentionShape& shape, Range tokens) const
{
  append_keys_and_values(cache, qkv, tokens);
  const VisibleKeys visible_keys({.B = 1, .T = tokens.end()});  // causal, without padding
  const std::int64_t width = shape.heads.count * shape.D;
  const Range keys{0, tokens.end()};
  with_fast_type(y.type(), [&]<class T>(T) {
    scratch_.reserve(forward_floats<T>(tokens.end(), shape.D));
    for_each_query_block(shape, tokens, [&](std::int64_t b, std::int64_t h, Range queries) {
      const std::int64_t column = h * shape.D;
      const HeadForward<T> head{shape.D,
                                head_rows<T>(qkv, b, tokens, 3 * width, column),
                                head_rows<T>(cache, b, keys, 2 * width, column),
                                head_rows<T>(cache, b, keys, 2 * width, width + column),
                                HeadDropout({}, 0, h),
                                scratch_.of(omp_get_thread_num()),
                                visible_keys};
      head.attend_and_divide(head_rows<T>(y, b, tokens, width, column), queries, keys);
    });
  });
}

}  // namespace rankwise
