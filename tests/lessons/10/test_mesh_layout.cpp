// The degrees of lesson 10's mesh, and the coordinates of ranks.

#include <array>
#include <limits>
#include <string>
#include <vector>

#include "common/base/error.hpp"
#include "lessons/parallel/mesh/mesh_layout.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

using Degrees = std::array<std::int64_t, 3>;  // dp, tp, pp

Degrees degrees(const Layout& layout)
{
  return {layout.dp, layout.tp, layout.pp};
}

/// The degrees that options choose for a number of ranks.
Degrees chosen(int ranks, const MeshOptions& options = {})
{
  return degrees(options.layout(ranks));
}

/// The message of check_mesh_options(); empty if it accepts the options.
std::string refusal(const MeshOptions& options, int ranks)
{
  try {
    check_mesh_options(options, ranks);
  } catch (const UserError& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("MeshOptions::layout: of 1 to 16 ranks two are parts and two are stages where they can be halved")
{
  for (int N = 1; N <= 16; ++N) {
    CAPTURE(N);
    const std::int64_t tp = N % 2 == 0 ? 2 : 1, pp = N % 4 == 0 ? 2 : 1;
    CHECK(chosen(N) == Degrees{N / (tp * pp), tp, pp});
    CHECK(refusal({}, N).empty());
  }
}

TEST_CASE("MeshOptions::layout: degrees that are given stay, and the others make up the rest")
{
  CHECK(chosen(8, {.dp = 2}) == Degrees{2, 2, 2});
  CHECK(chosen(8, {.dp = 1}) == Degrees{1, 2, 4});
  CHECK(chosen(8, {.tp = 4}) == Degrees{1, 4, 2});
  CHECK(chosen(8, {.tp = 1}) == Degrees{4, 1, 2});
  CHECK(chosen(8, {.pp = 4}) == Degrees{1, 2, 4});
  CHECK(chosen(8, {.dp = 2, .pp = 1}) == Degrees{2, 4, 1});
  CHECK(chosen(8, {.dp = 2, .tp = 1}) == Degrees{2, 1, 4});
  CHECK(chosen(8, {.tp = 1, .pp = 1}) == Degrees{8, 1, 1});
  CHECK(chosen(6, {.dp = 1}) == Degrees{1, 2, 3});
  CHECK(chosen(4, {.dp = 3, .tp = 2, .pp = 1}) == Degrees{3, 2, 1});  // which check_mesh_options() refuses
}

TEST_CASE("MeshOptions::split: the options for lesson 08")
{
  const MeshOptions options{.sequence_parallel = true, .regather = true};
  const SplitOptions split = options.split(8);
  CHECK(split.tp == 2);
  CHECK(split.dp == 1);
  CHECK((split.sequence_parallel && split.regather));
  CHECK(!MeshOptions{.tp = 4}.split(8).sequence_parallel);
  CHECK(MeshOptions{.tp = 4}.split(8).tp == 4);
}

TEST_CASE("factorisations: all of them once, by tp, then pp")
{
  std::vector<Degrees> of_four;
  for (const Layout& layout : factorisations(4)) of_four.push_back(degrees(layout));
  CHECK(of_four == std::vector<Degrees>{{4, 1, 1}, {2, 1, 2}, {1, 1, 4}, {2, 2, 1}, {1, 2, 2}, {1, 4, 1}});
  for (int N = 1; N <= 36; ++N) {
    std::size_t number = 0;
    for (int a = 1; a <= N; ++a)
      for (int b = 1; b <= N; ++b)
        for (int c = 1; c <= N; ++c) number += a * b * c == N ? 1 : 0;
    CHECK(factorisations(N).size() == number);
    for (const Layout& layout : factorisations(N)) CHECK(layout.dp * layout.tp * layout.pp == N);
  }
}

TEST_CASE("check_mesh_options: refuses degrees whose product is not the number of ranks, with ones that fit")
{
  CHECK(refusal({.dp = 2, .tp = 2, .pp = 2}, 8).empty());
  CHECK(refusal({.zero = 0}, 8).empty());
  CHECK_THAT(refusal({.dp = 3, .tp = 2, .pp = 1}, 4),
             Contains("--dp=3 --tp=2 --pp=1 make 6 ranks, but 4 were started.") &&
                 Contains("as dp tp pp: 4 1 1, 2 1 2, 1 1 4, 2 2 1, 1 2 2, 1 4 1."));
  CHECK_THAT(refusal({.tp = 3}, 8),
             Contains("With --tp=3 the 8 ranks that were started form no mesh: 3 does not divide them."));
  CHECK_THAT(refusal({.dp = 2, .pp = 3}, 8),
             Contains("With --dp=2 --pp=3 the 8 ranks") && Contains(": 6 does not divide them."));
  CHECK_THAT(refusal({.dp = 8}, 4), Contains("--dp=8 is more than the ranks that were started, 4."));
  const int most = std::numeric_limits<int>::max();
  CHECK_THAT(refusal({.dp = most, .tp = most, .pp = most}, 4), Contains("--dp=2147483647 is more than"));
  CHECK_THAT(refusal({.tp = 5}, 64), Contains("product is 64, as dp tp pp: 64 1 1, ") && Contains(", ..."));
  CHECK_THAT(refusal({.dp = -1}, 4), Contains("--dp=-1 is not a number of ranks"));
  CHECK_THAT(refusal({.tp = -2}, 4), Contains("--tp=-2 is not a number of ranks"));
  CHECK_THAT(refusal({.pp = -2}, 4), Contains("--pp=-2 is not a number of ranks"));
  for (const int zero : {-1, 2, 3})
    CHECK_THAT(refusal({.zero = zero}, 4), Contains("--zero=" + std::to_string(zero)) && Contains("Use 1 "));
}

TEST_CASE("axes_of: parts are neighbours, stages are furthest apart")
{
  const std::vector<Axis> axes = axes_of({.dp = 3, .tp = 4, .pp = 2});
  REQUIRE(axes.size() == 3);
  CHECK((axes[0].name == "pp" && axes[0].size == 2));
  CHECK((axes[1].name == "dp" && axes[1].size == 3));
  CHECK((axes[2].name == "tp" && axes[2].size == 4));
}

TEST_CASE("axes_of, place_of: rank = (pp * dp degree + dp) * tp degree + tp, and back, on every mesh")
{
  for (int N = 1; N <= 24; ++N)
    for (const Layout& layout : factorisations(N)) {
      CAPTURE(layout.dp, layout.tp, layout.pp);
      for (int pp = 0; pp < layout.pp; ++pp)
        for (int dp = 0; dp < layout.dp; ++dp)
          for (int tp = 0; tp < layout.tp; ++tp) {
            const int rank = rank_at(axes_of(layout), {pp, dp, tp});
            REQUIRE(rank == (pp * layout.dp + dp) * layout.tp + tp);
            const MeshCoordinates place = place_of(layout, rank);
            REQUIRE((place.dp == dp && place.tp == tp && place.pp == pp));
          }
    }
}
