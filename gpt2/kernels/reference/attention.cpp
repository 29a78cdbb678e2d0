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

/// a[d] += factor b[d] for the D channels of a head.
template <class A, class T>
void add_scaled(A* a, A factor, const T* b, std::int64_t D)
{
  for (std::int64_t d = 0; d < D; ++d) a[d] += factor * widen(b[d]);
}

/// Sizes, positions, mask and dropout that all computations with a run of queries and a run of keys need.
template <class A>
struct Layer {
  Layer(const AttentionShape& of, const AttentionRuns& tokens, const Dropout& dropout)
      : shape(of),
        runs(tokens),
        visible_keys(of),
        mask(dropout),
        dropped(dropout.active()),
        scale(1 / std::sqrt(static_cast<A>(of.D))),
        key_order(SumOrder::tokens(runs.keys, of.T)),
        query_order(SumOrder::tokens(runs.queries, of.T))
  {
  }
  /// The keys that query @p q of the run sees.
  KeyLeaves seen(std::int64_t b, std::int64_t q) const { return {key_order, visible_keys(b, q, runs)}; }
  /// The dropout factors of one query's attention weights, one for each of @p keys keys: 0 or 1 / (1 - rate).
  void factors(std::vector<A>& to, std::int64_t b, std::int64_t q, std::int64_t h, std::int64_t keys) const
  {
    if (!dropped) return;
    std::array<double, 4> four{};
    for (std::int64_t k = 0; k < keys; ++k) {
      const std::int64_t key = runs.keys.first + k;
      if (k == 0 || key % 4 == 0) four = mask.factors(b, q, shape.heads.first + h, key);
      to[static_cast<std::size_t>(k)] = static_cast<A>(four[static_cast<std::size_t>(key % 4)]);
    }
  }
  /// Index of query @p q of a head among the (B, heads, queries) rows of statistics.
  std::int64_t row(std::int64_t b, std::int64_t h, std::int64_t q) const
  {
    return (b * shape.heads.count + h) * runs.queries.count + q;
  }
  /// Offset of its D channels in (B queries, D heads).
  std::int64_t offset(std::int64_t b, std::int64_t h, std::int64_t q) const
  {
    return ((b * runs.queries.count + q) * shape.heads.count + h) * shape.D;
  }

  const AttentionShape& shape;
  const AttentionRuns& runs;
  VisibleKeys visible_keys;
  DropoutMask mask;
  bool dropped;
  A scale;  // of the scores
  SumOrder key_order, query_order;
};

/// The runs of a whole layer.
AttentionRuns all_tokens(const AttentionShape& shape)
{
  return {{0, shape.T}, {0, shape.T}};
}

// ---- forward pass ------------------------------------------------------------------------------------------------------

/// A soft-max over some of the keys that a query sees, as it is before the division.
template <class A>
struct SoftmaxView {
  A& maximum;  ///< largest score
  A& sum;      ///< sum over the keys of exp(score - maximum); 0: there are no keys
  A* output;   ///< (D) sum of factor exp(score - maximum) v
};

/// The two of them together: both are brought to the larger maximum M,
///     sum = sum exp(m - M) + sum' exp(m' - M), and output likewise.
/// @source  Milakov and Gimelshein 2018, section 3, equation 4.
template <class A>
void merge(const SoftmaxView<A>& into, const SoftmaxView<A>& from, std::int64_t D)
{
  if (from.sum == 0) return;
  const bool first = into.sum == 0;
  const A maximum = first ? from.maximum : std::max(into.maximum, from.maximum);
  const A a = first ? A(0) : std::exp(into.maximum - maximum), b = std::exp(from.maximum - maximum);
  into.maximum = maximum;
  into.sum = into.sum * a + from.sum * b;
  for (std::int64_t d = 0; d < D; ++d) into.output[d] = into.output[d] * a + from.output[d] * b;
}

/// Scratch of one thread for one query.
template <class A>
class QueryScratch {
 public:
  QueryScratch(std::int64_t keys, std::int64_t D)
      : weights(static_cast<std::size_t>(keys)),
        factors(weights.size(), A(1)),
        D_(D),
        places_(static_cast<std::size_t>(tree_places(leaves_of_a_sequence) * (D + 2)))
  {
  }
  /// The soft-max in a place of the tree.
  SoftmaxView<A> place(std::int64_t i)
  {
    A* const at = places_.data() + i * (D_ + 2);
    return {at[0], at[1], at + 2};
  }
  std::vector<A> weights, factors;  ///< of each key

 private:
  std::int64_t D_;
  std::vector<A> places_;
};

/// The soft-max of one query over the keys of one leaf.
///
///     score[k] = scale q.k,  sum = sum over k of exp(score[k] - maximum),
///     output = sum over k of factor[k] exp(score[k] - maximum) v[k]
template <class A, class T>
void leaf_softmax(const SoftmaxView<A>& to, QueryScratch<A>& scratch, const HeadView<T>& head, std::int64_t query,
                  Range keys, A scale)
{
  to.maximum = -std::numeric_limits<A>::infinity();
  to.sum = 0;
  std::fill_n(to.output, head.D, A(0));
  for (std::int64_t k = keys.first; k < keys.end(); ++k) {
    const A score = scale * dot(head.query(query), head.key(k), head.D);
    scratch.weights[static_cast<std::size_t>(k)] = score;
    to.maximum = std::max(to.maximum, score);
  }
  // The maximum is subtracted first, so that no exponential overflows.
  for (std::int64_t k = keys.first; k < keys.end(); ++k) {
    const auto i = static_cast<std::size_t>(k);
    const A weight = std::exp(scratch.weights[i] - to.maximum);
    to.sum += weight;
    add_scaled(to.output, scratch.factors[i] * weight, head.value(k), head.D);
  }
}

/// The soft-max of one query over all keys of the run that it sees: the leaves merge in the tree of tree_sum().
template <class A, class T>
SoftmaxView<A> softmax(QueryScratch<A>& scratch, const HeadView<T>& head, std::int64_t query,
                       const KeyLeaves& leaves, A scale)
{
  tree_in_places(
      leaves.order.leaves(),
      [&](std::int64_t place, std::int64_t leaf) {
        leaf_softmax(scratch.place(place), scratch, head, query, leaves.seen(leaf), scale);
      },
      [&](std::int64_t place) { merge(scratch.place(place), scratch.place(place + 1), head.D); });
  return scratch.place(0);
}

/// Calls done(b, h, q, soft-max) for every query of every head.
template <class T, class Head, class Done>
void for_each_softmax(const Layer<Accumulator<T>>& layer, Head&& head_of, Done&& done)
{
  using A = Accumulator<T>;
  const std::int64_t heads = layer.shape.heads.count;
#pragma omp parallel
  {
    QueryScratch<A> scratch(layer.runs.keys.count, layer.shape.D);
#pragma omp for
    for (std::int64_t bh = 0; bh < layer.shape.B * heads; ++bh) {
      const std::int64_t b = bh / heads, h = bh % heads;
      const HeadView<T> head = head_of(b, h);
      for (std::int64_t q = 0; q < layer.runs.queries.count; ++q) {
        const KeyLeaves leaves = layer.seen(b, q);
        layer.factors(scratch.factors, b, q, h, leaves.keys);
        done(b, h, q, softmax(scratch, head, q, leaves, layer.scale));
      }
    }
  }
}

/// y[d] = output[d] / sum. Returns the log of the sum of exponentials.
template <class T, class A>
A divide(T* y, const SoftmaxView<A>& softmax, std::int64_t D)
{
  for (std::int64_t d = 0; d < D; ++d) y[d] = T(softmax.output[d] / softmax.sum);
  return softmax.maximum + std::log(softmax.sum);
}

/// The tensors of a SoftmaxPartial, row by row of (B, heads, queries).
template <class A>
struct PartialView {
  explicit PartialView(const SoftmaxPartial& partial)
      : heads(partial.sum.extent(1)),
        queries(partial.sum.extent(2)),
        rows(partial.sum.elements()),
        D(partial.output.elements() / rows),
        maximum(partial.maximum.data<A>()),
        sum(partial.sum.data<A>()),
        output(partial.output.data<A>())
  {
  }
  /// Offset of the channels of row @p i in (B queries, D heads).
  std::int64_t offset(std::int64_t i) const
  {
    return ((i / (heads * queries) * queries + i % queries) * heads + i / queries % heads) * D;
  }
  SoftmaxView<A> operator[](std::int64_t i) const { return {maximum[i], sum[i], output + offset(i)}; }

  std::int64_t heads, queries, rows, D;
  A *maximum, *sum, *output;
};

}  // namespace

void ReferenceKernels::attention_forward(const Tensor& y, const Tensor& log_sum_exp, const Tensor& qkv,
                                         const AttentionShape& shape, const Dropout& dropout) const
{
  // weight[q, k] = exp(scale q.k - log_sum_exp[q]) over the keys k that query q sees, with scale = 1 / sqrt(D)
  // y[q] = sum over k of factor[q, k] weight[q, k] v[k] with the dropout factor, 0 or 1 / (1 - rate)
  with_real_type(y.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const AttentionRuns all = all_tokens(shape);
    const Layer<A> layer(shape, all, dropout);
    T *const qkv_at = qkv.data<T>(), *const y_at = y.data<T>();
    A* const lse = log_sum_exp.data<A>();
    for_each_softmax<T>(
        layer, [&](std::int64_t b, std::int64_t h) { return HeadView<T>(qkv_at, shape, b, h); },
        [&](std::int64_t b, std::int64_t h, std::int64_t q, const SoftmaxView<A>& found) {
          lse[layer.row(b, h, q)] = divide(y_at + layer.offset(b, h, q), found, shape.D);
        });
  });
}

void ReferenceKernels::attention_partial(const SoftmaxPartial& partial, const Tensor& qkv, const Tensor& kv,
                                         const AttentionShape& shape, const AttentionRuns& runs,
                                         const Dropout& dropout) const
{
  with_real_type(qkv.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const Layer<A> layer(shape, runs, dropout);
    const PartialView<A> to(partial);
    for_each_softmax<T>(
        layer,
        [&](std::int64_t b, std::int64_t h) { return HeadView<T>(qkv.data<T>(), kv.data<T>(), shape, runs, b, h); },
        [&](std::int64_t b, std::int64_t h, std::int64_t q, const SoftmaxView<A>& found) {
          const SoftmaxView<A> row = to[layer.row(b, h, q)];
          row.maximum = found.maximum;
          row.sum = found.sum;
          std::copy_n(found.output, shape.D, row.output);
        });
  });
}

void ReferenceKernels::attention_merge(const SoftmaxPartial& into, const SoftmaxPartial& from) const
{
  with_real_type(into.sum.type(), [&]<class A>(A) {
    if constexpr (std::is_same_v<A, Accumulator<A>>) {
      const PartialView<A> to(into), other(from);
#pragma omp parallel for
      for (std::int64_t i = 0; i < to.rows; ++i) merge(to[i], other[i], to.D);
    }
  });
}

void ReferenceKernels::attention_divide(const Tensor& y, const Tensor& log_sum_exp,
                                        const SoftmaxPartial& partial) const
{
  with_real_type(y.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const PartialView<A> all(partial);
    A* const lse = log_sum_exp.data<A>();
#pragma omp parallel for
    for (std::int64_t i = 0; i < all.rows; ++i) lse[i] = divide(y.data<T>() + all.offset(i), all[i], all.D);
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
  // weight[q, k] = exp(scale q.k - log_sum_exp[q]) and y[q] = sum over k of weight[q, k] v[k], over the keys 0 .. q.
  // The leaves are those of a sequence that fills the cache.
  with_real_type(y.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t heads = shape.heads.count, D = shape.D;
    const A scale = 1 / std::sqrt(static_cast<A>(D));
    const AttentionRuns runs{tokens, {0, tokens.end()}};
    const SumOrder order = SumOrder::tokens({0, cache.extent(0)}, cache.extent(0));
#pragma omp parallel
    {
      QueryScratch<A> scratch(tokens.end(), D);
#pragma omp for
      for (std::int64_t h = 0; h < heads; ++h) {
        const HeadView<T> head(qkv.data<T>(), cache.data<T>(), shape, runs, 0, h);
        for (std::int64_t q = 0; q < tokens.count; ++q) {
          const KeyLeaves leaves{order, tokens.first + q + 1};
          divide(y.data<T>() + (q * heads + h) * D, softmax(scratch, head, q, leaves, scale), D);
        }
      }
    }
  });
}

// ---- backward pass -----------------------------------------------------------------------------------------------------

namespace {

/// Gradients of one head while its queries are processed: keys and values accumulate a contribution of every query
/// that sees them. Each sum has places for the tree over its leaves; its result is in the first.
template <class A>
struct HeadGradient {
  HeadGradient(const AttentionRuns& runs, std::int64_t D)
      : channels(D),
        keys(runs.keys.count),
        dqueries(static_cast<std::size_t>(tree_places(leaves_of_a_sequence) * D)),
        dkeys(static_cast<std::size_t>(tree_places(leaves_of_a_sequence) * 2 * keys * D)),
        weights(static_cast<std::size_t>(keys)),
        factors(static_cast<std::size_t>(keys), A(1)),
        dscore(static_cast<std::size_t>(keys))
  {
  }
  A* dquery(std::int64_t place) { return dqueries.data() + place * channels; }                // (D)
  A* dkey(std::int64_t place) { return dkeys.data() + place * 2 * keys * channels; }          // (keys, D)
  A* dvalue(std::int64_t place) { return dkeys.data() + (place * 2 + 1) * keys * channels; }  // (keys, D)

  std::int64_t channels, keys;
  std::vector<A> dqueries, dkeys;
  std::vector<A> weights, factors, dscore;  // (keys) each, of the current query
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

/// The gradient of one query, in g.dquery(0): a tree over the leaves of the keys that it sees.
///
///     forward    score[k] = scale q.key[k]
///     backward   dq = sum over k of scale dscore[k] key[k]
template <class T>
void query_backward(HeadGradient<Accumulator<T>>& g, const HeadView<T>& head, const KeyLeaves& leaves,
                    Accumulator<T> scale)
{
  using A = Accumulator<T>;
  tree_in_places(
      leaves.order.leaves(),
      [&](std::int64_t place, std::int64_t leaf) {
        std::fill_n(g.dquery(place), head.D, A(0));
        const Range keys = leaves.seen(leaf);
        for (std::int64_t k = keys.first; k < keys.end(); ++k)
          add_scaled(g.dquery(place), scale * g.dscore[static_cast<std::size_t>(k)], head.key(k), head.D);
      },
      [&](std::int64_t place) { add_scaled(g.dquery(place), A(1), g.dquery(place + 1), head.D); });
}

/// The contributions of one query to the gradients of the keys and values that it sees.
///
///     forward    score[k] = scale q.key[k],  y = sum over k of factor[k] weight[k] value[k]
///     backward   dkey[k] += scale dscore[k] q,  dvalue[k] += factor[k] weight[k] dy
template <class T>
void keys_backward(HeadGradient<Accumulator<T>>& g, const HeadView<T>& head, std::int64_t query, std::int64_t keys,
                   Accumulator<T> scale, const T* dy, std::int64_t place)
{
  for (std::int64_t k = 0; k < keys; ++k) {
    const auto i = static_cast<std::size_t>(k);
    add_scaled(g.dkey(place) + k * head.D, scale * g.dscore[i], head.query(query), head.D);
    add_scaled(g.dvalue(place) + k * head.D, g.weights[i] * g.factors[i], dy, head.D);
  }
}

/// Inputs of the backward pass.
template <class T>
struct BackwardView {
  const T *dy, *y;
  const Accumulator<T>* log_sum_exp;
};

/// All gradients of one head: dq of each query goes to query_done(q, dq), those of keys and values are left in
/// g.dkey(0) and g.dvalue(0), as trees over the leaves of the queries.
template <class T, class Done>
void head_backward(HeadGradient<Accumulator<T>>& g, const Layer<Accumulator<T>>& layer, const HeadView<T>& head,
                   const BackwardView<T>& in, std::int64_t b, std::int64_t h, Done&& query_done)
{
  using A = Accumulator<T>;
  const std::int64_t both = 2 * g.keys * head.D;  // dkey and dvalue of a place
  tree_in_places(
      layer.query_order.leaves(),
      [&](std::int64_t place, std::int64_t leaf) {
        std::fill_n(g.dkey(place), both, A(0));
        const Range queries = layer.query_order.run(leaf, 0);
        for (std::int64_t q = queries.first; q < queries.end(); ++q) {
          const KeyLeaves leaves = layer.seen(b, q);
          const std::int64_t at = layer.offset(b, h, q);
          layer.factors(g.factors, b, q, h, leaves.keys);
          score_backward(g, head, q, leaves.keys, layer.scale, in.log_sum_exp[layer.row(b, h, q)], in.dy + at,
                         in.y + at);
          query_backward(g, head, leaves, layer.scale);
          keys_backward(g, head, q, leaves.keys, layer.scale, in.dy + at, place);
          query_done(q, g.dquery(0));
        }
      },
      [&](std::int64_t place) { add_scaled(g.dkey(place), A(1), g.dkey(place + 1), both); });
}

/// Calls f(g, b, h) for every head, with scratch of its own for each thread.
template <class A, class F>
void for_each_head(const Layer<A>& layer, F&& f)
{
  const std::int64_t heads = layer.shape.heads.count;
#pragma omp parallel
  {
    HeadGradient<A> g(layer.runs, layer.shape.D);
#pragma omp for
    for (std::int64_t bh = 0; bh < layer.shape.B * heads; ++bh) f(g, bh / heads, bh % heads);
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
    const AttentionRuns all = all_tokens(shape);
    const Layer<A> layer(shape, all, dropout);
    const BackwardView<T> in{dy.data<T>(), y.data<T>(), log_sum_exp.data<A>()};
    const auto round = [&](T* to, const A* from) {
      for (std::int64_t d = 0; d < shape.D; ++d) to[d] = T(from[d]);
    };
    for_each_head(layer, [&](HeadGradient<A>& g, std::int64_t b, std::int64_t h) {
      const HeadView<T> head(qkv.data<T>(), shape, b, h), dhead(dqkv.data<T>(), shape, b, h);
      head_backward(g, layer, head, in, b, h,
                    [&](std::int64_t q, const A* dquery) { round(dhead.query(q), dquery); });
      // Every sum is rounded once, when it is complete.
      for (std::int64_t t = 0; t < shape.T; ++t) {
        round(dhead.key(t), g.dkey(0) + t * shape.D);
        round(dhead.value(t), g.dvalue(0) + t * shape.D);
      }
    });
  });
}

void ReferenceKernels::attention_partial_backward(const Tensor& dq, const Tensor& dkv, const Tensor& dy,
                                                  const Tensor& y, const Tensor& log_sum_exp, const Tensor& qkv,
                                                  const Tensor& kv, const AttentionShape& shape,
                                                  const AttentionRuns& runs, const Dropout& dropout) const
{
  with_real_type(y.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const Layer<A> layer(shape, runs, dropout);
    const BackwardView<T> in{dy.data<T>(), y.data<T>(), log_sum_exp.data<A>()};
    const std::int64_t D = shape.D, width = shape.heads.count * D;
    for_each_head(layer, [&](HeadGradient<A>& g, std::int64_t b, std::int64_t h) {
      const HeadView<T> head(qkv.data<T>(), kv.data<T>(), shape, runs, b, h);
      head_backward(g, layer, head, in, b, h, [&](std::int64_t q, const A* dquery) {
        std::copy_n(dquery, D, dq.data<A>() + layer.offset(b, h, q));
      });
      A* const to = dkv.data<A>() + b * runs.keys.count * 2 * width + h * D;
      for (std::int64_t k = 0; k < runs.keys.count; ++k) {
        std::copy_n(g.dkey(0) + k * D, D, to + k * 2 * width);
        std::copy_n(g.dvalue(0) + k * D, D, to + k * 2 * width + width);
      }
    });
  });
}

void ReferenceKernels::copy(const Matrix& to, const Matrix& from) const
{
  check(to.rows == from.rows && to.columns == from.columns, "a matrix is copied to one of other sizes");
  const auto copied = [&]<class To, class From>(To, From) {
    const TypedMatrix<To> out(to);
    const TypedMatrix<From> in(from);
#pragma omp parallel for
    for (std::int64_t i = 0; i < to.rows; ++i)
      for (std::int64_t j = 0; j < to.columns; ++j) out(i, j) = To(static_cast<Accumulator<To>>(widen(in(i, j))));
  };
  with_real_type(to.data.type(), [&]<class To>(To) {
    with_real_type(from.data.type(), [&]<class From>(From) { copied(To(), From()); });
  });
}

}  // namespace rankwise
