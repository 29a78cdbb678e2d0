#include <vector>

#include "tests/catch.hpp"
#include "tests/gpt2/kernels/families.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

struct Case {
  std::int64_t B, T, E, k, C;

  std::int64_t rows() const { return B * T; }
};

const std::vector<Case> cases{
    {1, 1, 2, 1, 1}, {2, 5, 4, 1, 8}, {1, 7, 4, 2, 20}, {3, 16, 8, 3, 64}, {2, 33, 5, 5, 17}};

/// The router alone.
Computation route(const Case& c)
{
  return [c](Data& data, const Kernels& kernels) {
    const Tensor p = data.output({c.rows(), c.E}, Role::sum), weights = data.output({c.rows(), c.k}, Role::sum);
    kernels->route(p, data.integer_output({c.rows(), c.k}), weights,
                   data.input({c.rows(), c.E}, numbers(1, 2), Role::sum));
    return std::vector<Output>{{"probabilities", p, c.E}, {"weights", weights, c.k}};
  };
}

/// Distinct experts of each token.
Tensor choices_of(Data& data, const Case& c)
{
  return data.integers(c.rows() * c.k, [=](std::int64_t i) { return (i / c.k * 3 + i % c.k) % c.E; })
      .reshaped({c.rows(), c.k});
}

Computation route_backward(const Case& c)
{
  return [c, truth = Truth(route(c))](Data& data, const Kernels& kernels) mutable {
    const Tensor dlogits = data.output({c.rows(), c.E});
    kernels->route_backward(dlogits, data.input({c.rows(), c.k}, numbers(2), Role::sum),
                            data.input({c.rows(), c.E}, truth(data, 0), Role::sum), choices_of(data, c),
                            data.input({c.rows(), c.k}, truth(data, 1), Role::sum),
                            data.input({c.B, c.E}, numbers(3, 0.1), Role::sum));
    return std::vector<Output>{{"dlogits", dlogits, c.E}};
  };
}

/// Places of the choices in reverse order; every seventh choice has none.
Tensor places_of(Data& data, const Case& c)
{
  const std::int64_t all = c.rows() * c.k;
  return data.integers(all, [=](std::int64_t i) { return i % 7 == 6 ? -1 : all - 1 - i; })
      .reshaped({c.rows(), c.k});
}

/// Rows to their places, and back with and without weights.
Computation rows_there_and_back(const Case& c)
{
  return [c](Data& data, const Kernels& kernels) {
    const std::int64_t all = c.rows() * c.k;
    const Tensor places = places_of(data, c), weights = data.input({c.rows(), c.k}, numbers(4), Role::sum);
    const Tensor rows = data.updated({all, c.C}, numbers(5)), y = data.output({c.rows(), c.C});
    kernels->scatter_rows(rows, data.input({c.rows(), c.C}, numbers(6)), places);
    kernels->combine_rows(y, rows, places, weights);
    const Tensor sum = data.output({c.rows(), c.C});
    kernels->combine_rows(sum, rows, places, {});
    return std::vector<Output>{{"rows", rows, c.C}, {"y", y, c.C}, {"sum", sum, c.C}};
  };
}

Computation combine_backward(const Case& c)
{
  return [c](Data& data, const Kernels& kernels) {
    const std::int64_t all = c.rows() * c.k;
    const Tensor drows = data.updated({all, c.C}, numbers(7)), dweights = data.output({c.rows(), c.k}, Role::sum);
    kernels->combine_rows_backward(drows, dweights, data.input({c.rows(), c.C}, numbers(8)),
                                   data.input({all, c.C}, numbers(5)), places_of(data, c),
                                   data.input({c.rows(), c.k}, numbers(4), Role::sum));
    return std::vector<Output>{{"drows", drows, c.C}, {"dweights", dweights, c.k}};
  };
}

}  // namespace

TEST_CASE("every router: is the reference's, forward and backward")
{
  for (const Case& c : cases) {
    INFO(c.rows() << " rows, " << c.k << " of " << c.E << " experts");
    check_against_reference(route(c));
    check_against_reference(route_backward(c));
  }
}

TEST_CASE("every router: of equally probable experts the one with the smaller number is chosen")
{
  for_each_family([](const Kernels& kernels) {
    Data data;
    const Tensor choices = data.integer_output({2, 3});
    const std::vector<double> logits{1, 2, 2, 2, 0, 0, 0, 0};
    kernels->route(data.output({2, 4}, Role::sum), choices, data.output({2, 3}, Role::sum),
                   data.input({2, 4}, elements_of(logits), Role::sum));
    const std::int32_t* const found = choices.data<std::int32_t>();
    CHECK(std::vector(found, found + 6) == std::vector<std::int32_t>{1, 2, 3, 0, 1, 2});
  });
}

TEST_CASE("every movement of rows: is the reference's, to the experts, back, and backward")
{
  for (const Case& c : cases) {
    INFO(c.rows() << " rows of " << c.C << ", " << c.k << " choices");
    check_against_reference(rows_there_and_back(c));
    check_against_reference(combine_backward(c));
  }
}
