#include <vector>

#include "tests/catch.hpp"
#include "tests/gpt2/kernels/families.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// Rows of C channels: T tokens of B sequences, which begin somewhere in the batch and somewhere in the sequence.
struct Size {
  std::int64_t B, T, C;
  Rows rows() const { return {{6, B}, {3, T}}; }
  Shape shape() const { return {B * T, C}; }
};
constexpr Size sizes[] = {{1, 1, 1}, {1, 1, 5}, {2, 8, 16}, {3, 5, 22}, {1, 65, 33}, {2, 7, 768}};
constexpr double rates[] = {0, 0.1, 0.5, 0.9};

Dropout dropout_of(double rate, const Size& s)
{
  return {rate, 5, 3, 4, Purpose::residual_dropout, s.rows()};
}

/// Which elements of ones a family drops, in place or not.
Tensor mask_of(Data& data, const Kernels& kernels, const Dropout& dropout, const Size& s, bool in_place)
{
  const Tensor dy = in_place ? data.updated(s.shape(), numbers(1, 0, 1)) : data.output(s.shape());
  kernels->dropout(dy, in_place ? dy : data.input(s.shape(), numbers(1, 0, 1)), dropout);
  return dy;
}

}  // namespace

TEST_CASE("every residual_forward: is the reference's")
{
  for (const Size& s : sizes)
    for (const double rate : rates) {
      INFO("B " << s.B << ", T " << s.T << ", C " << s.C << ", dropout " << rate);
      check_against_reference([&](Data& data, const Kernels& kernels) {
        const Tensor out = data.output(s.shape());
        kernels->residual_forward(out, data.input(s.shape(), numbers(1)), data.input(s.shape(), numbers(2)),
                                  data.input({s.C}, numbers(3)), dropout_of(rate, s));
        return std::vector<Output>{{"out", out, 1}};
      });
    }
}

TEST_CASE("every dropout: is the reference's, also in place")
{
  for (const Size& s : sizes)
    for (const double rate : rates)
      for (const bool in_place : {false, true}) {
        INFO("B " << s.B << ", T " << s.T << ", C " << s.C << ", dropout " << rate << ", in place " << in_place);
        check_against_reference([&](Data& data, const Kernels& kernels) {
          const Tensor dy = in_place ? data.updated(s.shape(), numbers(1)) : data.output(s.shape());
          kernels->dropout(dy, in_place ? dy : data.input(s.shape(), numbers(1)), dropout_of(rate, s));
          return std::vector<Output>{{"dy", dy, 1}};
        });
      }
}

TEST_CASE("every dropout: the masks are the reference's, bit for bit")
{
  Laboratory lab;
  for (const Size& s : sizes)
    for (const double rate : rates)
      for (const bool in_place : {false, true})
        for (const Purpose purpose : {Purpose::residual_dropout, Purpose::embedding_dropout}) {
          Dropout dropout = dropout_of(rate, s);
          dropout.purpose = purpose;
          for (const Types& types : {all_f32, mixed}) {
            Data reference(types);
            const Tensor mask = mask_of(reference, lab.kernels(), dropout, s, in_place);
            for_each_family(types, [&](const Kernels& kernels) {
              Data data(types);
              CHECK(different_bits(mask_of(data, kernels, dropout, s, in_place), mask) == 0);
            });
          }
        }
}
