#include <stdexcept>
#include <string>
#include <type_traits>

#include "common/base/error.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

constexpr SourceLocation outer(SourceLocation where = SourceLocation::current())
{
  return where;
}

/// The Error that @p f throws.
template <class F>
Error thrown_by(F&& f)
{
  try {
    f();
  } catch (const Error& error) {
    return error;
  }
  return Error("nothing was thrown");
}

bool names_this_file(const SourceLocation& where)
{
  return std::string(where.file_name()).ends_with("tests/common/base/test_error.cpp");
}

}  // namespace

TEST_CASE("UserError: the lines after the first stand under the text that follows \"error: \"")
{
  CHECK(std::string(UserError("--tp=3 does not divide 4 heads.", "Use --tp=2.").what()) ==
        "error: --tp=3 does not divide 4 heads.\n"
        "       Use --tp=2.");
  CHECK(std::string(UserError("one\ntwo", "three\nfour\n  five").what()) ==
        "error: one\n"
        "       two\n"
        "       three\n"
        "       four\n"
        "         five");
}

TEST_CASE("UserError: is not derived from Error, so a handler of one does not catch the other")
{
  CHECK_THROWS_AS([] { throw UserError("asked", "remedy"); }(), std::runtime_error);
  STATIC_REQUIRE_FALSE(std::is_base_of_v<Error, UserError>);
  STATIC_REQUIRE_FALSE(std::is_base_of_v<UserError, Error>);
  STATIC_REQUIRE(exit_success == 0);
  STATIC_REQUIRE(exit_failure == 1);
  STATIC_REQUIRE(exit_user_error == 2);
}

TEST_CASE("SourceLocation: as a default argument it is the line of the caller")
{
  constexpr SourceLocation here = outer();
  STATIC_REQUIRE(here.line() == __LINE__ - 1);
  CHECK(names_this_file(here));
}

TEST_CASE("Error: names the line that threw it")
{
  const Error error = thrown_by([] { throw Error("the message"); });
  CHECK(error.where().line() == __LINE__ - 1);
  CHECK(names_this_file(error.where()));
  CHECK(std::string(error.what()) == "the message");
  CHECK(Error("elsewhere", outer()).where().line() == __LINE__);
}

TEST_CASE("check: throws unless the condition holds, with the line of the caller")
{
  CHECK_NOTHROW(check(true, "unused"));
  const Error error = thrown_by([] { check(1 + 1 == 3, "sums are wrong"); });
  CHECK(error.where().line() == __LINE__ - 1);
  CHECK(names_this_file(error.where()));
  CHECK(std::string(error.what()) == "sums are wrong");
}

TEST_CASE("not_implemented: names exercise, task and line")
{
  const auto stub = [] { not_implemented("01.1", "Norm backward: dx, dweight and dbias."); };
  const unsigned line = __LINE__ - 1;
  CHECK_THROWS_AS(stub(), NotImplemented);
  const Error error = thrown_by(stub);
  CHECK(std::string(error.what()) == "exercise 01.1 is not implemented: Norm backward: dx, dweight and dbias.");
  CHECK(error.where().line() == line);
  CHECK(names_this_file(error.where()));
}
