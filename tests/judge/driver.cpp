#include "tests/judge/driver.hpp"

#include <cstdlib>
#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <optional>

#include "common/base/digest.hpp"
#include "common/base/error.hpp"

namespace rankwise {

namespace {

std::optional<Session> session;

std::map<std::string, std::function<judge::Json(const judge::Json&)>>& exercises()
{
  static std::map<std::string, std::function<judge::Json(const judge::Json&)>> all;
  return all;
}

/// One line for the judge: "ANSWER {...}".
void answer(const judge::Json& outputs)
{
  std::cout << "\nANSWER " << outputs.dump() << std::endl;
}

}  // namespace

const Session& world()
{
  return *session;
}

namespace judge {

Exercise::Exercise(std::string number, std::function<Json(const Json&)> run)
{
  exercises().emplace(std::move(number), std::move(run));
}

Json numbers(const Tensor& values)
{
  return testing::values_of(values);
}

std::string digest(const Tensor& values)
{
  Sha256 hash;
  hash.update({values.raw(), static_cast<std::size_t>(values.bytes())});
  return hash.hex();
}

Tensor random_tensor(testing::Laboratory& lab, DType type, const Shape& shape, std::int64_t seed)
{
  return lab.filled(type, shape, static_cast<std::uint32_t>(seed));
}

DType type_of(const Json& name)
{
  for (const DType type : {DType::f32, DType::bf16, DType::f64})
    if (name_of(type) == name.get<std::string>()) return type;
  throw Error("there is no type " + name.dump());
}

}  // namespace judge

}  // namespace rankwise

/// Runs the exercise that the command line names, for each line of standard input.
int main(int argc, char** argv)
{
  using namespace rankwise;
  const auto found = exercises().find(argc == 2 ? argv[1] : "");
  if (found == exercises().end()) {
    std::cerr << "usage: " << argv[0] << " EXERCISE, one of this program's, with a line of JSON for each case\n";
    return exit_user_error;
  }
  if (std::getenv("RANKWISE_HUB") != nullptr) session.emplace(argc, argv);
  for (std::string line; std::getline(std::cin, line);) {
    try {
      answer({{"outputs", found->second(judge::Json::parse(line))}});
      // Cases do not overlap, so that steps can be counted.
      if (session) check_mpi(MPI_Barrier(MPI_COMM_WORLD), "ending a case");
    } catch (const NotImplemented& missing) {
      answer({{"not implemented", missing.what()}});
      return exit_failure;
    } catch (const std::exception& error) {
      answer({{"error", error.what()}});
      return exit_failure;
    }
  }
  session.reset();
  return exit_success;
}
