#include <algorithm>
#include <array>
#include <cmath>
#include <omp.h>
#include <type_traits>

#include "gpt2/kernels/cpu/attention_blocks.hpp"
#include "gpt2/kernels/cpu/cpu.hpp"

namespace rankwise {

namespace {

/// The gradients of one head's queries, keys and values while they are summed over blocks.
struct HeadGradients {
  HeadRows<float> queries, keys, values;
};

/// The gradients of a whole layer: the sums are in dqkv, or in bf16 in scratch memory until they are complete.
template <class T>
struct RoundedGradients {
  /// @param scratch  (floats()), used in bf16 only.
  RoundedGradients(const Tensor& dqkv, const AttentionShape& shape, std::int64_t b, std::int64_t h, float* scratch)
      : tokens(shape.T), D(shape.D)
  {
    const std::int64_t width = shape.heads.count * D;
    for (int i = 0; i < 3; ++i) {
      const auto at = static_cast<std::size_t>(i);
      to[at] = head_rows<T>(dqkv, b, {0, tokens}, 3 * width, i * width + h * D);
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

  std::int64_t tokens, D;
  std::array<HeadRows<T>, 3> to{};
  std::array<HeadRows<float>, 3> sums{};
};

/// The inputs, outputs and scratch memory of one thread in the backward pass of one head: the gradients that a run of
/// queries and a run of keys give each other.
template <class T>
struct HeadBackward {
  std::int64_t D;
  AttentionRuns runs;
  HeadRows<T> q, k, v, y, dy;
  HeadGradients gradients;
  HeadDropout dropout;
  const float* log_sum_exp;  // (queries) of this head
  float* weights;            // query_block x key_block: p, and p after dropout
  float* dscores;            // query_block x key_block: the gradients of the weights, then of the scores
  float* rounded;            // in bf16: memory for the rounded copy of one of the two
  float* inner_products;     // (queries): dy y of each token
  VisibleKeys visible_keys;

  /// Fills inner_products: dy.y of each query, which equals
  /// the sum over keys of weight times gradient of the weight.
  void multiply_outputs() const
  {
    for (std::int64_t i = 0; i < runs.queries.count; ++i) {
      const T *const a = dy.row(runs.queries.first + i), *const b = y.row(runs.queries.first + i);
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t d = 0; d < D; ++d) sum += widen(a[d]) * widen(b[d]);
      inner_products[i] = sum;
    }
  }

  /// From q.k and dy.v to weights and scale dscore = scale weight (factor dweight - dy.y), row by row; afterwards the weights are
  /// those after dropout.
  void score_gradients(const Block<T>& p, const Block<T>& ds) const
  {
    const float scale = 1 / std::sqrt(static_cast<float>(D));
    for (std::int64_t t = p.queries.first; t < p.queries.end(); ++t) {
      float *const weight = p.row(t), *const dscore = ds.row(t);
      const std::int64_t n = p.visible(visible_keys(dropout.sequence, t));
      const std::int64_t row = t - runs.queries.first;
      const float lse = log_sum_exp[row], inner_product = inner_products[row];
      dropout.apply(dscore, t, p.keys.first, n);
#pragma omp simd
      for (std::int64_t i = 0; i < whole_vectors(n); ++i) {
        weight[i] = exponential(scale * weight[i] - lse);
        dscore[i] = scale * weight[i] * (dscore[i] - inner_product);
      }
      dropout.apply(weight, t, p.keys.first, n);
      std::fill(weight + n, weight + p.keys.count, 0.0F);
      std::fill(dscore + n, dscore + p.keys.count, 0.0F);
      p.round(t);
      ds.round(t);
    }
  }

  /// Adds the contributions of one block of queries and keys to the gradients of both: dq += scale dscore k, dk +=
  /// scale dscore q, dv += factor weight dy. With @p first_keys or @p first_queries nothing has been added before
  /// to the gradients of these queries, or of these keys, so they are overwritten.
  void backward(Range queries, Range keys, bool first_keys, bool first_queries) const
  {
    const Block<T> p{queries, keys, weights, rounded_block<T>(weights, rounded)};
    const Block<T> ds{queries, keys, dscores, rounded_block<T>(dscores, rounded + block_floats / 2)};
    const auto& [dq, dk, dv] = gradients;
    const std::int64_t Q = queries.count, K = keys.count;
    gemm(weights, p.stride(), q.from(queries.first), k.transposed_from(keys.first), Q, K, D, false);
    gemm(dscores, p.stride(), dy.from(queries.first), v.transposed_from(keys.first), Q, K, D, false);
    score_gradients(p, ds);
    gemm(dv.row(keys.first), dv.stride, p.transposed(), dy.from(queries.first), K, D, Q, !first_queries);
    gemm(dk.row(keys.first), dk.stride, ds.transposed(), q.from(queries.first), K, D, Q, !first_queries);
    gemm(dq.row(queries.first), dq.stride, ds.whole(), k.from(keys.first), Q, D, K, !first_keys);
  }

  /// Processes all blocks of the head. A query sees the first keys of the run, or none; queries that see none, and
  /// keys that no query sees, get the gradient zero.
  void backward() const
  {
    multiply_outputs();
    const auto clear = [&](const HeadRows<float>& rows, Range tokens) {
      for (std::int64_t t = tokens.first; t < tokens.end(); ++t) std::fill_n(rows.row(t), D, 0.0F);
    };
    for (std::int64_t key = runs.keys.first; key < runs.keys.end(); key += key_block) {
      const Range keys = block_at(key, key_block, runs.keys.end());
      bool seen = false;
      for (std::int64_t query = runs.queries.first; query < runs.queries.end(); query += query_block) {
        const Range queries = block_at(query, query_block, runs.queries.end());
        if (visible_keys(dropout.sequence, queries.end() - 1) > key) {
          backward(queries, keys, key == runs.keys.first, !seen);
          seen = true;
        } else if (key == runs.keys.first) {
          clear(gradients.queries, queries);
        }
      }
      if (!seen) {
        clear(gradients.keys, keys);
        clear(gradients.values, keys);
      }
    }
  }
};

/// Scratch of one thread for blocks, in floats.
template <class T>
constexpr std::int64_t backward_block_floats = (std::is_same_v<T, float> ? 2 : 3) * block_floats;

}  // namespace

void CpuKernels::attention_backward(const Tensor& dqkv, const Tensor& dy, const Tensor& y,
                                    const Tensor& log_sum_exp, const Tensor& qkv, const AttentionShape& shape,
                                    const Dropout& dropout) const
{
  const std::int64_t heads = shape.heads.count, D = shape.D, width = heads * D;
  const Range all{0, shape.T};
  const float* const lse = log_sum_exp.data<float>();
  const VisibleKeys visible_keys(shape);
  with_fast_type(y.type(), [&]<class T>(T) {
    constexpr std::int64_t blocks = backward_block_floats<T>;
    const std::int64_t head_size = shape.T * D, copies = std::is_same_v<T, float> ? 0 : 2 * head_size;
    scratch_.reserve(blocks + shape.T + RoundedGradients<T>::floats(shape) + copies);
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t bh = 0; bh < shape.B * heads; ++bh) {
      const std::int64_t b = bh / heads, h = bh % heads;
      float *const scratch = scratch_.of(omp_get_thread_num()), *const sums = scratch + blocks + shape.T;
      T* const at = reinterpret_cast<T*>(sums + RoundedGradients<T>::floats(shape));
      const auto copied = [&](const Tensor& rows, std::int64_t stride, std::int64_t column, int place) {
        return side_by_side(head_rows<T>(rows, b, all, stride, column + h * D), all, D, at + place * head_size);
      };
      const RoundedGradients<T> gradients(dqkv, shape, b, h, sums);
      const HeadBackward<T> head{D,
                                 {all, all},
                                 copied(qkv, 3 * width, 0, 0),
                                 copied(qkv, 3 * width, width, 1),
                                 copied(qkv, 3 * width, 2 * width, 2),
                                 head_rows<T>(y, b, all, width, h * D),
                                 copied(dy, width, 0, 3),
                                 {gradients.sums[0], gradients.sums[1], gradients.sums[2]},
                                 HeadDropout(dropout, b, shape.heads.first + h),
                                 lse + bh * shape.T,
                                 scratch,
                                 scratch + block_floats,
                                 scratch + 2 * block_floats,
                                 scratch + blocks,
                                 visible_keys};
      head.backward();
      gradients.store();
    }
  });
}

void CpuKernels::attention_partial_backward(const Tensor& dq, const Tensor& dkv, const Tensor& dy, const Tensor& y,
                                            const Tensor& log_sum_exp, const Tensor& qkv, const Tensor& kv,
                                            const AttentionShape& shape, const AttentionRuns& runs,
                                            const Dropout& dropout) const
{
  const std::int64_t heads = shape.heads.count, D = shape.D, width = heads * D;
  const std::int64_t Q = runs.queries.count, K = runs.keys.count;
  const float* const lse = log_sum_exp.data<float>();
  const VisibleKeys visible_keys(shape);
  with_fast_type(y.type(), [&]<class T>(T) {
    constexpr std::int64_t blocks = backward_block_floats<T>;
    scratch_.reserve(blocks + Q + (std::is_same_v<T, float> ? 0 : (Q + K) * D));
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t bh = 0; bh < shape.B * heads; ++bh) {
      const std::int64_t b = bh / heads, h = bh % heads, column = h * D;
      float* const scratch = scratch_.of(omp_get_thread_num());
      T* const at = reinterpret_cast<T*>(scratch + blocks + Q);
      const auto copied = [&](const Tensor& rows, Range tokens, std::int64_t stride, std::int64_t first,
                              std::int64_t place) {
        return side_by_side(head_rows<T>(rows, b, tokens, stride, first), tokens, D, at + place * D);
      };
      const HeadBackward<T> head{D,
                                 runs,
                                 copied(qkv, runs.queries, 3 * width, column, 0),
                                 copied(kv, runs.keys, 2 * width, column, 2 * Q),
                                 copied(kv, runs.keys, 2 * width, width + column, 2 * Q + K),
                                 head_rows<T>(y, b, runs.queries, width, column),
                                 copied(dy, runs.queries, width, column, Q),
                                 {head_rows<float>(dq, b, runs.queries, width, column),
                                  head_rows<float>(dkv, b, runs.keys, 2 * width, column),
                                  head_rows<float>(dkv, b, runs.keys, 2 * width, width + column)},
                                 HeadDropout(dropout, b, shape.heads.first + h),
                                 lse + bh * Q,
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
