# Every target makes what it needs: a bare machine (Debian, root) can start with any of them.
BIN := .venv/bin
.PHONY: setup fmt lint type unit integration sglang cluster test try demo bench proto images cluster-up cluster-down

setup:         ## the Python environment
	@hack/bootstrap python
fmt: setup     ## format and repair what the linter can
	@$(BIN)/ruff check -q --fix . ; $(BIN)/ruff format -q .
lint: setup    ## ruff, and who may import whom
	@$(BIN)/ruff check -q . && $(BIN)/ruff format -q --check . && $(BIN)/lint-imports
type: setup    ## mypy, strict
	@$(BIN)/mypy
unit: setup    ## pure modules; seconds
	@$(BIN)/pytest -q tests/unit
integration: setup  ## real processes on memfd, no cluster
	@$(BIN)/pytest -q tests/integration
sglang: setup  ## the real SGLang on a CPU: its loader, its arithmetic against the reference engine's
	@hack/bootstrap sglang
	@$(BIN)/pytest -q tests/sglang
cluster:       ## kubelet and containers: on this machine, or where KUBECONFIG points
	@hack/bootstrap
	@$(BIN)/pytest -q tests/cluster
test:          ## everything above; tests/house is lint and type
	@hack/bootstrap python sglang cluster
	@$(BIN)/pytest -q
try: setup     ## fill, serve, kill, attach, serve: as plain processes, under a minute
	@hack/try
demo:          ## the whole story on Kubernetes
	@hack/bootstrap
	@$(BIN)/python -m hack.demo
bench:         ## one line per figure, and build/bench.json
	@hack/bootstrap
	@$(BIN)/python -m benchmarks
proto: setup   ## the gRPC stubs, after an edit of a .proto file
	@hack/generate-stubs
images:        ## the product's images, into the local cluster's store
	@hack/bootstrap cluster
cluster-up:    ## a two-node Kubernetes on this machine; prints its kubeconfig, and how a shell gets kubectl and helm
	@hack/bootstrap
	@hack/cluster/up
cluster-down:  ## ends it
	@hack/cluster/down
