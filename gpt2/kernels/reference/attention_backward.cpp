#include <vector>

#include "common/base/portable_math.hpp"
#include "gpt2/kernels/reference/attention_layer.hpp"

namespace rankwise {

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

/// The weights of one query, computed again: weight[k] = exp(scale q.k - log_sum_exp).
template <class T>
void weights_again(HeadGradient<Accumulator<T>>& g, const HeadView<T>& head, std::int64_t query, std::int64_t keys,
                   Accumulator<T> scale, Accumulator<T> log_sum_exp)
{
  Accumulator<T>* const weights = g.weights.data();
  for (std::int64_t k = 0; k < keys; ++k)
    weights[k] = scale * dot(head.query(query), head.key(k), head.D) - log_sum_exp;
  for (std::int64_t k = 0; k < keys; ++k) weights[k] = portable::exp(weights[k]);
}

/// The gradient of the scores of one query, g.dscore[k] for each of the @p keys keys that it sees, from g.weights and
/// the dropout factors g.factors.
///
///     forward    y = sum over k of factor[k] weight[k] v[k],  the weights are the softmax of the scores
///     backward   dweight[k] = factor[k] dy.v[k]
///                dscore[k] = weight[k] (dweight[k] - sum over j of weight[j] dweight[j])
/// @param dy  (D) gradient of the output of this query and head.
/// @param y   (D) that output.
template <class T>
void score_backward(HeadGradient<Accumulator<T>>& g, const HeadView<T>& head, std::int64_t keys, const T* dy,
                    const T* y)
{
  // BEGIN EXERCISE 01.2
  using A = Accumulator<T>;
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
  end_sums(g.dquery(0), head.D);
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
void head_backward(HeadGradient<Accumulator<T>>& g, const ReferenceLayer<Accumulator<T>>& layer,
                   const HeadView<T>& head, const BackwardView<T>& in, std::int64_t b, std::int64_t h,
                   Done&& query_done)
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
          fill_factors(g.factors, layer, b, q, h, leaves.keys);
          weights_again(g, head, q, leaves.keys, layer.scale, in.log_sum_exp[layer.row(b, h, q)]);
          score_backward(g, head, leaves.keys, in.dy + at, in.y + at);
          query_backward(g, head, leaves, layer.scale);
          keys_backward(g, head, q, leaves.keys, layer.scale, in.dy + at, place);
          query_done(q, g.dquery(0));
        }
      },
      [&](std::int64_t place) { add_scaled(g.dkey(place), A(1), g.dkey(place + 1), both); });
  end_sums(g.dkey(0), both);
}

/// Calls f(g, b, h) for every head, with scratch of its own for each thread.
template <class A, class F>
void for_each_head(const ReferenceLayer<A>& layer, F&& f)
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
    const ReferenceLayer<A> layer(shape, all_tokens(shape), dropout);
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
    const ReferenceLayer<A> layer(shape, runs, dropout);
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

}  // namespace rankwise
