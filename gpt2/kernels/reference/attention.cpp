#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gpt2/kernels/attention_heads.hpp"
#include "gpt2/kernels/reference/reference.hpp"

namespace rankwise {

namespace {

/// The dot product of two rows of D channels: lane_count interleaved sums, then added pairwise; the same order for
/// every head.
template <class T, class U>
auto dot(const T* a, const U* b, std::int64_t D)
{
  using A = Accumulator<T>;
  std::array<A, lane_count> sum{};
  for (std::int64_t d = 0; d + lane_count <= D; d += lane_count)
    for (std::size_t w = 0; w < lane_count; ++w)
      sum[w] += widen(a[d + static_cast<std::int64_t>(w)]) * widen(b[d + static_cast<std::int64_t>(w)]);
  for (std::int64_t d = D / lane_count * lane_count; d < D; ++d)
    sum[static_cast<std::size_t>(d % lane_count)] += widen(a[d]) * widen(b[d]);
  return tree_sum(0, lane_count, [&](std::int64_t w) { return sum[static_cast<std::size_t>(w)]; });
}

/// The dropout factors of one query's attention weights, one for each key: 0 or 1 / (1 - rate).
template <class A>
void attention_factors(std::vector<A>& factors, const DropoutMask& mask, std::int64_t sequence, std::int64_t query,
                       std::int64_t head, std::int64_t keys)
{
  for (std::int64_t k = 0; k < keys; k += 4) {
    const std::array<double, 4> four = mask.factors(sequence, query, head, k);
    for (std::int64_t i = 0; i < std::min<std::int64_t>(4, keys - k); ++i)
      factors[static_cast<std::size_t>(k + i)] = static_cast<A>(four[static_cast<std::size_t>(i)]);
  }
}

/// a[d] += factor b[d] for the D channels of a head.
template <class A, class T>
void add_scaled(A* a, A factor, const T* b, std::int64_t D)
{
  for (std::int64_t d = 0; d < D; ++d) a[d] += factor * widen(b[d]);
}

/// The attention weights of one query before dropout: weights[k] = exp(score[k]) / sum over j of exp(score[j]),
/// with score[k] = scale q.k. Returns the log of the sum.
template <class A, class Head>
A softmax_row(std::vector<A>& weights, const Head& head, std::int64_t query, std::int64_t keys, A scale)
{
  // score[k] = scale q.k, and the largest score.
  A maximum = -std::numeric_limits<A>::infinity(), sum = 0;
  for (std::int64_t k = 0; k < keys; ++k) {
    const A score = scale * dot(head.query(query), head.key(k), head.D);
    weights[static_cast<std::size_t>(k)] = score;
    maximum = std::max(maximum, score);
  }
  // The maximum is subtracted first, so that no exponential overflows.
  for (std::size_t k = 0; k < static_cast<std::size_t>(keys); ++k) {
    weights[k] = std::exp(weights[k] - maximum);
    sum += weights[k];
  }
  for (std::size_t k = 0; k < static_cast<std::size_t>(keys); ++k) weights[k] /= sum;
  return maximum + std::log(sum);
}

/// to[d] = sum over keys k of weights[k] v[k, d]; @p sums is scratch.
template <class T, class A, class Head>
void weighted_values(T* to, std::vector<A>& sums, const std::vector<A>& weights, const Head& head,
                     std::int64_t keys)
{
  std::fill(sums.begin(), sums.end(), A(0));
  for (std::int64_t k = 0; k < keys; ++k)
    add_scaled(sums.data(), weights[static_cast<std::size_t>(k)], head.value(k), head.D);
  for (std::size_t d = 0; d < sums.size(); ++d) to[d] = T(sums[d]);
}

}  // namespace

void ReferenceKernels::attention_forward(const Tensor& y, const Tensor& log_sum_exp, const Tensor& qkv,
                                         const AttentionShape& shape, const Dropout& dropout) const
{
  // weight[q, k] = exp(scale q.k - log_sum_exp[q]) over the keys k that query q sees, with scale = 1 / sqrt(D)
  // y[q] = sum over k of factor[q, k] weight[q, k] v[k] with the dropout factor, 0 or 1 / (1 - rate)
  with_real_type(y.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t tokens = shape.T, heads = shape.heads.count, D = shape.D;
    const A scale = 1 / std::sqrt(static_cast<A>(D));
    const DropoutMask dropped(dropout);
    const VisibleKeys visible_keys(shape);
    T* const qkv_at = qkv.data<T>();
    T* const y_at = y.data<T>();
    A* const lse = log_sum_exp.data<A>();
#pragma omp parallel
    {
      std::vector<A> weights(static_cast<std::size_t>(tokens)), factors(weights.size(), A(1));
      std::vector<A> out(static_cast<std::size_t>(D));
#pragma omp for
      for (std::int64_t bh = 0; bh < shape.B * heads; ++bh) {
        const std::int64_t b = bh / heads, h = bh % heads;
        const HeadView<T> head(qkv_at, shape, b, h);
        for (std::int64_t q = 0; q < tokens; ++q) {
          // weight[q, k] over the visible keys, then times factor[q, k].
          const std::int64_t keys = visible_keys(b, q);
          lse[bh * tokens + q] = softmax_row(weights, head, q, keys, scale);
          if (dropout.active()) {
            attention_factors(factors, dropped, b, q, shape.heads.first + h, keys);
            for (std::size_t k = 0; k < static_cast<std::size_t>(keys); ++k) weights[k] *= factors[k];
          }
          // y[q] = sum over k of factor[q, k] weight[q, k] v[k]
          weighted_values(y_at + ((b * tokens + q) * heads + h) * D, out, weights, head, keys);
        }
      }
    }
  });
}

void append_keys_and_values(const Tensor& cache, const Tensor& qkv, Range tokens)
{
  check(tokens.end() <= cache.extent(0), "the sequence has more tokens than the key-value cache has rows");
  // A row of qkv is (q, k, v), a row of the cache is (k, v): everything after q is copied.
  const std::int64_t row = cache.extent(1) * bytes_of(cache.type()), query = row / 2;
  for (std::int64_t t = 0; t < tokens.count; ++t)
    std::memcpy(cache.raw() + (tokens.first + t) * row, qkv.raw() + t * (query + row) + query,
                static_cast<std::size_t>(row));
}

void ReferenceKernels::cached_attention_forward(const Tensor& y, const Tensor& cache, const Tensor& qkv,
                                                const AttentionShape& shape, Range tokens) const
{
  append_keys_and_values(cache, qkv, tokens);
  // weight[q, k] = exp(scale q.k - log_sum_exp[q]) and y[q] = sum over k of weight[q, k] v[k], over the keys 0 .. q
  with_real_type(y.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t heads = shape.heads.count, D = shape.D;
    const A scale = 1 / std::sqrt(static_cast<A>(D));
    T *const qkv_at = qkv.data<T>(), *const cache_at = cache.data<T>(), *const y_at = y.data<T>();
#pragma omp parallel
    {
      std::vector<A> weights(static_cast<std::size_t>(tokens.end())), out(static_cast<std::size_t>(D));
#pragma omp for
      for (std::int64_t h = 0; h < heads; ++h) {
        const CachedHeadView<T> head(qkv_at, cache_at, shape, tokens, h);
        for (std::int64_t q = tokens.first; q < tokens.end(); ++q) {
          softmax_row(weights, head, q, q + 1, scale);
          weighted_values(y_at + ((q - tokens.first) * heads + h) * D, out, weights, head, q + 1);
        }
      }
    }
  });
}

namespace {

/// Gradients of one head while its queries are processed: keys and values accumulate a contribution of every query
/// that sees them.
template <class A>
struct HeadGradient {
  HeadGradient(std::int64_t T, std::int64_t D)
      : dquery(static_cast<std::size_t>(D)),
        dkey(static_cast<std::size_t>(T * D)),
        dvalue(static_cast<std::size_t>(T * D)),
        weights(static_cast<std::size_t>(T)),
        factors(static_cast<std::size_t>(T), A(1)),
        dscore(static_cast<std::size_t>(T))
  {
  }
  void start_head()
  {
    std::fill(dkey.begin(), dkey.end(), A(0));
    std::fill(dvalue.begin(), dvalue.end(), A(0));
  }
  std::vector<A> dquery, dkey, dvalue;      // (D), (T, D), (T, D)
  std::vector<A> weights, factors, dscore;  // (T) each, of the current query
};

/// The weights of one query, computed again, and the gradient of its scores.
///
///     forward    weight[k] = exp(scale q.k - log_sum_exp),  y = sum over k of factor[k] weight[k] v[k]
///     backward   dweight[k] = factor[k] dy.v[k],  dscore[k] = weight[k] (dweight[k] - dy.y)
template <class T>
void score_backward(HeadGradient<Accumulator<T>>& g, const HeadView<T>& head, std::int64_t query, std::int64_t keys,
                    Accumulator<T> scale, Accumulator<T> log_sum_exp, const T* dy, const T* y)
{
  using A = Accumulator<T>;
  for (std::int64_t k = 0; k < keys; ++k)
    g.weights[static_cast<std::size_t>(k)] =
        std::exp(scale * dot(head.query(query), head.key(k), head.D) - log_sum_exp);

  // BEGIN EXERCISE 01.2 points=10 "The backward pass of softmax: for each key k, dscore[k] = weight[k] "
  //     "(dweight[k] - sum over j of weight[j] dweight[j]), where dweight[k] = factor[k] (dy . v[k]). The sum "
  //     "over j need not be formed: it equals dy . y, because y already is the weighted sum of the values. Use "
  //     "dot() and head.value(k)."
  const A weighted_sum = dot(dy, y, head.D);
  for (std::int64_t k = 0; k < keys; ++k) {
    const auto i = static_cast<std::size_t>(k);
    const A dweight = g.factors[i] * dot(dy, head.value(k), head.D);
    g.dscore[i] = g.weights[i] * (dweight - weighted_sum);
  }
  // END EXERCISE
}

/// The gradients of one query, and its contributions to those of the keys and values that it sees.
///
///     forward    score[k] = scale q.key[k],  y = sum over k of factor[k] weight[k] value[k]
///     backward   dq = sum over k of scale dscore[k] key[k],  dkey[k] += scale dscore[k] q,
///                dvalue[k] += factor[k] weight[k] dy
template <class T>
void query_backward(HeadGradient<Accumulator<T>>& g, const HeadView<T>& head, std::int64_t query, std::int64_t keys,
                    Accumulator<T> scale, const T* dy)
{
  std::fill(g.dquery.begin(), g.dquery.end(), Accumulator<T>(0));
  for (std::int64_t k = 0; k < keys; ++k) {
    const auto i = static_cast<std::size_t>(k);
    add_scaled(g.dquery.data(), scale * g.dscore[i], head.key(k), head.D);
    add_scaled(g.dkey.data() + k * head.D, scale * g.dscore[i], head.query(query), head.D);
    add_scaled(g.dvalue.data() + k * head.D, g.weights[i] * g.factors[i], dy, head.D);
  }
}

}  // namespace

void ReferenceKernels::attention_backward(const Tensor& dqkv, const Tensor& dy, const Tensor& y,
                                          const Tensor& log_sum_exp, const Tensor& qkv, const AttentionShape& shape,
                                          const Dropout& dropout) const
{
  // forward:  weight[q, k] = exp(scale q.k - log_sum_exp[q]), y[q] = sum over k of factor[q, k] weight[q, k] v[k]
  with_real_type(y.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t tokens = shape.T, heads = shape.heads.count, D = shape.D;
    const A scale = 1 / std::sqrt(static_cast<A>(D));
    const DropoutMask dropped(dropout);
    const VisibleKeys visible_keys(shape);
    T *const dqkv_at = dqkv.data<T>(), *const qkv_at = qkv.data<T>();
    const T *const dy_at = dy.data<T>(), *const y_at = y.data<T>();
    const A* const lse = log_sum_exp.data<A>();
#pragma omp parallel
    {
      HeadGradient<A> g(tokens, D);
#pragma omp for
      for (std::int64_t bh = 0; bh < shape.B * heads; ++bh) {
        const std::int64_t b = bh / heads, h = bh % heads;
        const HeadView<T> head(qkv_at, shape, b, h), dhead(dqkv_at, shape, b, h);
        g.start_head();
        // Query by query: dq is complete after its query, dk and dv accumulate over all queries.
        for (std::int64_t q = 0; q < tokens; ++q) {
          const std::int64_t keys = visible_keys(b, q), at = ((b * tokens + q) * heads + h) * D;
          if (dropout.active()) attention_factors(g.factors, dropped, b, q, shape.heads.first + h, keys);
          score_backward(g, head, q, keys, scale, lse[bh * tokens + q], dy_at + at, y_at + at);
          query_backward(g, head, q, keys, scale, dy_at + at);
          for (std::int64_t d = 0; d < D; ++d) dhead.query(q)[d] = T(g.dquery[static_cast<std::size_t>(d)]);
        }
        // dk and dv are complete after the last query, and are rounded once.
        for (std::int64_t t = 0; t < tokens; ++t)
          for (std::int64_t d = 0; d < D; ++d) {
            dhead.key(t)[d] = T(g.dkey[static_cast<std::size_t>(t * D + d)]);
            dhead.value(t)[d] = T(g.dvalue[static_cast<std::size_t>(t * D + d)]);
          }
      }
    }
  });
}

}  // namespace rankwise
