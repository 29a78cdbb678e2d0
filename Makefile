# Short names for the scripts and presets. `make` alone lists them.
# ARGS="..." is passed on where a program or a script takes options:  make lesson-01 ARGS="--steps=5 --model=mini"

.PHONY: help build doctor ladder test nightly sanitize threads emulated gpu bench films docs format output golden grade

help:  ## this list
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / { sub("%", "NN", $$1); printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build:  ## install what is missing, build everything (build/)
	@scripts/setup.sh && scripts/build.sh release

ladder:  ## run the lessons, print one table
	@scripts/ladder.sh $(ARGS)

test:  ## build and run the tests
	@scripts/test.sh $(ARGS)

nightly: build  ## run the tests, the long ones too
	@ctest --preset nightly $(ARGS)

sanitize:  ## build and run the tests under AddressSanitizer and UndefinedBehaviourSanitizer (build-sanitize/)
	@scripts/setup.sh && scripts/build.sh sanitize && ctest --preset sanitize $(ARGS)

threads:  ## build and run the tests of what has several threads under ThreadSanitizer (build-threads/)
	@scripts/setup.sh && scripts/build.sh threads && ctest --preset threads $(ARGS)

emulated:  ## build and run the tests of GPUs, emulated on the CPU, under AddressSanitizer (build-emulated/)
	@scripts/setup.sh && scripts/build.sh emulated gpu_tests && ctest --preset emulated $(ARGS)

gpu:  ## build for GPUs, check everything on the one of this machine, print one table (build-gpu/)
	@scripts/bench/gpu_check.sh $(ARGS)

lesson-%:  ## run lesson NN, as scripts/rankwise run NN does (ARGS="-n 4 --steps=5")
	@scripts/rankwise run $* $(ARGS)

doctor:  ## look whether this machine has all that is needed
	@scripts/rankwise doctor

diff-%:  ## what lesson NN changes in the lesson it builds on
	@scripts/course/diff.sh $*

exercise-%:  ## write a copy of lesson NN with its exercises to do (student/)
	@scripts/course/exercise.py make $* $(ARGS)

grade:  ## in a starter repository: test and grade all of its exercises, or one (EX=06.3)
	@scripts/setup.sh && scripts/course.py grade $(if $(EX),--lessons=$(EX)) $(ARGS)

grade-%:  ## check and grade the exercises of lesson NN, or one of them (grade-06.3)
	@scripts/course/exercise.py grade $* $(ARGS)

bench: build  ## time training steps beside the best matrix products here (ARGS=--write keeps the tables)
	@. scripts/mpi_environment.sh && scripts/bench/bench.py $(ARGS)

films: build  ## film a step of each lesson from 03 to 16 (build/films); `make docs` puts them into the site
	@scripts/film/films.sh

docs:  ## make the site of the documentation (build/docs/html/index.html)
	@scripts/docs.sh

format:  ## lay out all C++ sources with clang-format
	@scripts/check/format.sh $(ARGS)

output: build  ## run what the READMEs show the output of, and put it in its place
	@scripts/check/update_output.py $(ARGS)

golden:  ## compute the golden figures of the tests anew (needs PyTorch)
	@scripts/pytorch/golden_figures.py $(ARGS)
