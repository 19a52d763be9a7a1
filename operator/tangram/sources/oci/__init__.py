"""A checkpoint in a registry of images: a modelcar of KServe, a ModelPack of CNCF, or files pushed by oras.

docker_config   credentials of a registry, in a Secret of type kubernetes.io/dockerconfigjson
registry        manifests, and ranges of blobs, by the OCI Distribution API
manifest        the layers of a manifest: tars, or single files
layers          the files of a checkpoint in a layer, by ranged reads or as a stream that is verified
"""
