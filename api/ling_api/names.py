"""Every string that two rooms, or a room and a manifest, must spell alike: group, labels, paths, ports, reasons."""

from typing import Final

GROUP: Final = "ling.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

# labels of pods (and of the objects a deployment owns)
LABEL_DEPLOYMENT: Final = "ling.dev/deployment"
LABEL_SLOT: Final = "ling.dev/slot"  # the LingSlot's name
LABEL_REVISION: Final = "ling.dev/revision"
LABEL_COMPONENT: Final = "ling.dev/component"
LABEL_SERVING: Final = "ling.dev/serving"  # on slot pods; the Service selects it
ANNOTATION_IMAGE: Final = "ling.dev/image"  # of a ControllerRevision: the engine image, resolved once
COMPONENT_SLOT: Final = "slot"
COMPONENT_ENGINE: Final = "engine"
COMPONENT_CHECK: Final = "check"  # a pod that tries a revision's image and flags before an engine is stopped for it
COMPONENT_AGENT: Final = "agent"  # pods of the DaemonSet; the operator reads from them which nodes have an agent

# taints that say that a node is about to go; operator and agent may be told of others
LEAVING_TAINTS: Final = (
    "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/out-of-service",
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
)

# what the device plugin mounts into a pod, and under which resource name
RESOURCE: Final = "ling.dev/node-agent"
DEVICES: Final = 256
RUN_DIR: Final = "/run/ling"
MODELS_DIR: Final = "/models"
CACHE_DIR: Final = "/var/cache/ling"  # of kernels compiled at run time; the same path in every container
AGENT_SOCKET: Final = "agent.sock"  # gRPC, control
FD_SOCKET: Final = "fd.sock"  # descriptors
STATUS_SOCKET: Final = "status.sock"  # on the node, for `ling-nodeagent status`
PVC_DIR: Final = "/checkpoint"  # where an engine pod mounts the claim of pvc://
DRAFT_DIR: Final = "/draft"  # the same for a draft that lies in another claim than the model

SERVE_PORT: Final = 8000
PROBE_PORT: Final = 8002
METRICS_PORT: Final = 9400
BACKLOG: Final = 4096  # the keeper's listen(); every acceptor repeats it, because a second listen() resets it

# environment of engine containers
ENV_RUN_DIR: Final = "LING_RUN"
ENV_CACHE_DIR: Final = "LING_CACHE"
ENV_PROBE_PORT: Final = "LING_PROBE_PORT"
ENV_RUNTIME: Final = "LING_RUNTIME"
ENV_LEAVE_SECONDS: Final = "LING_LEAVE_SECONDS"  # an environment, no flag: an engine's image may be older

# conditions of a LingSlot
WEIGHTS_HELD: Final = "WeightsHeld"
SERVING: Final = "Serving"
RECOVERING: Final = "Recovering"
AGENT_LOST: Final = "AgentLost"

# conditions of a LingDeployment
READY: Final = "Ready"
PROGRESSING: Final = "Progressing"
UPDATE_IN_PROGRESS: Final = "UpdateInProgress"
WEIGHTS_CACHED: Final = "WeightsCached"
DEGRADED: Final = "Degraded"
GPU_ALLOCATED: Final = "GPUAllocated"
STANDBY_READY: Final = "StandbyReady"
SLO_MET: Final = "SLOMet"
